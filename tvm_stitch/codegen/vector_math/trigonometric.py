# SPDX-License-Identifier: Apache-2.0
"""sin, cos, tan and the inverse circular functions of float32, without branches, tables or libm calls."""

from __future__ import annotations

from ...compat import tir
from .scope import (
    Expr,
    Scope,
    f32,
    f64,
    fabs,
    from_bits,
    horner,
    i32,
    nearest_int,
    quotient,
    to_bits,
    with_sign_of,
)

# (sin(x) / x - 1) / x^2 in x^2 for |x| <= pi / 4, 5e-12. (cos(x) - 1 + x^2 / 2) / x^4 in x^2 on the same interval,
# 1e-10.
_SIN = (-0.1666666716337204, 0.008333329111337662, -0.0001983933470910415, 2.7183041311218403e-06)
_COS = (0.04166664555668831, -0.0013887366512790322, 2.4438379114144482e-05)
# (atan(x) / x - 1) / x^2 in x^2 on [0, 1], 4e-10.
_ATAN = (
    -0.333333283662796, 0.1999967098236084, -0.14279833436012268, 0.11058223247528076, -0.08811090886592865,
    0.06741596013307571, -0.04468991979956627, 0.02253985032439232, -0.007317948620766401,
    0.001113787293434143,
)  # fmt: skip
# (asin(x) / x - 1) / x^2 in x^2 for |x| <= 1/2, 3e-10.
_ASIN = (
    0.16666659712791443, 0.07500510662794113, 0.04451572149991989, 0.031817615032196045, 0.014402597211301327,
    0.037565216422080994,
)  # fmt: skip
_ROUNDER = 1.5 * 2.0**52
_HALF_PI, _PI = 1.5707963267948966, 3.141592653589793
_HALF_PI_LO = _HALF_PI - 1.57079637050628662109375  # the remainder of pi/2 after rounding to float32

# 2 / pi in parts of 28, 28 and 53 bits, per range of |x| (its lower end is the key). The highest bits of 2 / pi are
# left out if every x of the range times them is a multiple of 4 (whole turns). So no float32 loses digits.
_TWO_OVER_PI = {
    0.0: (0.6366197690367699, 3.3308114738561656e-09, 2.276010073078396e-18),
    2.0**45: (2.0449648729936598e-07, 2.937095479631555e-16, 6.074026489649846e-24),
    2.0**73: (2.937095479631555e-16, 6.074026479468182e-24, 1.018166438749971e-32),
    2.0**101: (6.074026479468182e-24, 1.0181664256805226e-32, 1.3069448323317805e-40),
}


def _reduce(scope: Scope, a: Expr) -> tuple[Expr, Expr]:
    """Return (r, q) with a = r + q * pi / 2 modulo 2 pi and |r| <= pi / 4, for a >= 0. For inf, r is NaN."""
    wide = scope.let(tir.Cast("float64", a))
    parts: list[Expr] = []
    for index in range(3):
        part: Expr = f64(_TWO_OVER_PI[0.0][index])
        for start in list(_TWO_OVER_PI)[1:]:
            part = tir.Select(a >= f32(start), f64(_TWO_OVER_PI[start][index]), part)
        parts.append(wide * part)
    # The first two products are exact in float64, and so is taking whole turns off them.
    first, second = (_off_turns(scope, scope.let(part)) for part in parts[:2])
    quarter = scope.let(nearest_int(first + second, 8))
    r = ((first - tir.Cast("float64", quarter)) + second) + parts[2]
    return scope.let(tir.Cast("float32", r * f64(_HALF_PI))), quarter


def _off_turns(scope: Scope, x: Expr) -> Expr:
    """Return x modulo 4, in [-2, 2], for a float64 |x| < 2**53.

    Adding and subtracting 1.5 * 2**52 rounds to an integer. Access through bits in between hides from TVM's
    simplifier that the two would cancel over the reals.
    """
    rounded = tir.reinterpret("int64", x * f64(0.25) + f64(_ROUNDER))
    return scope.let(x - (tir.reinterpret("float64", rounded) - f64(_ROUNDER)) * f64(4.0))


def _sin_cos(scope: Scope, r: Expr) -> tuple[Expr, Expr]:
    """Return (sin r, cos r) for |r| <= pi / 4."""
    u = scope.let(r * r)
    sine = r * u * horner(u, _SIN) + r
    cosine = (u * u) * horner(u, _COS) + (f32(1.0) - u * f32(0.5))
    return scope.let(sine), scope.let(cosine)


def _flip(x: Expr, bits: Expr) -> Expr:
    """Return x with its sign flipped if ``bits`` (int32) has its second lowest bit set."""
    return from_bits(to_bits(x) ^ ((bits & i32(2)) << i32(30)))


def _odd(q: Expr) -> Expr:
    return tir.EQ(q & i32(1), i32(1))


def sin(scope: Scope, x: Expr) -> Expr:
    """Return sin(x), for every float32."""
    r, q = _reduce(scope, scope.let(fabs(x)))
    sine, cosine = _sin_cos(scope, r)
    result = _flip(tir.Select(_odd(q), cosine, sine), q)
    return from_bits(to_bits(result) ^ (to_bits(x) & i32(-(2**31))))


def cos(scope: Scope, x: Expr) -> Expr:
    """Return cos(x), for every float32."""
    r, q = _reduce(scope, scope.let(fabs(x)))
    sine, cosine = _sin_cos(scope, r)
    return _flip(tir.Select(_odd(q), sine, cosine), q + i32(1))


def tan(scope: Scope, x: Expr) -> Expr:
    """Return tan(x), for every float32."""
    r, q = _reduce(scope, scope.let(fabs(x)))
    sine, cosine = _sin_cos(scope, r)
    odd = _odd(q)
    result = quotient(tir.Select(odd, cosine, sine), tir.Select(odd, f32(0.0) - sine, cosine))
    return from_bits(to_bits(result) ^ (to_bits(x) & i32(-(2**31))))


def _atan_unit(scope: Scope, t: Expr) -> Expr:
    """Return atan(t) for t in [0, 1]."""
    u = scope.let(t * t)
    return t * u * horner(u, _ATAN) + t


def atan(scope: Scope, x: Expr) -> Expr:
    """Return the arc tangent."""
    a = scope.let(fabs(x))
    large = a > f32(1.0)
    t = scope.let(_atan_unit(scope, scope.let(tir.Select(large, quotient(f32(1.0), a), a))))
    return with_sign_of(tir.Select(large, f32(_HALF_PI) - (t - f32(_HALF_PI_LO)), t), x)


def atan2(scope: Scope, y: Expr, x: Expr) -> Expr:
    """Return the angle of the point (x, y), with C's results on the axes and at infinity."""
    a, b = scope.let(fabs(y)), scope.let(fabs(x))
    steep = a > b
    # 0/0 counts as 0, inf/inf as 1. A NaN that the comparisons would drop is put back at the end by the sum.
    equal = tir.And(tir.EQ(a, b), tir.Or(tir.EQ(a, f32(0.0)), tir.EQ(a, f32(float("inf")))))
    ratio = quotient(tir.Select(steep, b, a), tir.Select(steep, a, b))
    ratio = tir.Select(equal, tir.Select(tir.EQ(a, f32(0.0)), f32(0.0), f32(1.0)), ratio)
    t = scope.let(_atan_unit(scope, scope.let(ratio)))
    t = scope.let(tir.Select(steep, f32(_HALF_PI) - (t - f32(_HALF_PI_LO)), t))
    left = to_bits(x) < i32(0)
    return with_sign_of(tir.Select(left, f32(_PI) - (t - f32(2 * _HALF_PI_LO)), t), y)


def _asin_half(scope: Scope, x: Expr) -> tuple[Expr, Expr]:
    """Return asin(t), and the condition that a = |x| is more than 1/2.

    If it holds, t is sqrt((1 - a) / 2). Otherwise t is a itself.
    """
    a = scope.let(fabs(x))
    large = a > f32(0.5)
    t = scope.let(tir.Select(large, tir.sqrt(f32(0.5) - a * f32(0.5)), a))
    u = scope.let(t * t)
    return scope.let(t * u * horner(u, _ASIN) + t), large


def asin(scope: Scope, x: Expr) -> Expr:
    """Return the arc sine, or NaN outside [-1, 1]."""
    s, large = _asin_half(scope, x)
    return with_sign_of(tir.Select(large, f32(_HALF_PI) - (s + s - f32(_HALF_PI_LO)), s), x)


def acos(scope: Scope, x: Expr) -> Expr:
    """Return the arc cosine, or NaN outside [-1, 1]."""
    s, large = _asin_half(scope, x)
    negative = x < f32(0.0)
    far = tir.Select(negative, f32(_PI) - (s + s - f32(2 * _HALF_PI_LO)), s + s)
    near = f32(_HALF_PI) - (tir.Select(negative, f32(0.0) - s, s) - f32(_HALF_PI_LO))
    return tir.Select(large, far, near)
