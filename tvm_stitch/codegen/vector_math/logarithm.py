# SPDX-License-Identifier: Apache-2.0
"""log, log2, log10, log1p, asinh, acosh and atanh of float32, without branches, tables or libm calls."""

from __future__ import annotations

from ...compat import tir
from .scope import (
    INF,
    NAN,
    Expr,
    Scope,
    at_most,
    f32,
    fabs,
    from_bits,
    horner,
    i32,
    pow2,
    quotient,
    to_bits,
    with_sign_of,
)

# (log(1 + f) - f + f^2 / 2) / f^3 for 1 + f in [sqrt(1/2), sqrt(2)], 6e-9 relative to the logarithm.
_LOG = (
    0.3333333134651184, -0.2500081956386566, 0.20001226663589478, -0.16623356938362122, 0.14201755821704865,
    -0.13160185515880585, 0.12761594355106354, -0.07634509354829788,
)  # fmt: skip
# Constants in two parts. The first has so few bits that its product with an exponent is exact.
_LN2_HI, _LN2_LO = 0.693359375, -2.12194440054690582e-4
_LOG10_2_HI, _LOG10_2_LO = 0.30078125, 2.48745663981195e-4
_LOG10_E_HI, _LOG10_E_LO = 0.43359375, 7.00731903251827651e-4
_LOG2_E_MINUS_1 = 0.44269504088896340736
# From here on x^2 may overflow, and log(2x) is its inverse hyperbolic sine to the last digit.
_FAR = 2.0**60
_LN2 = 0.6931471805599453

_SQRT_HALF_BITS = 0x3F3504F3
_SMALLEST_NORMAL = 1.1754943508222875e-38


def _exponent(bits: Expr) -> Expr:
    """Return k with x = m * 2**k and m in [sqrt(1/2), sqrt(2)), from the bits of a positive normal x."""
    return (bits - i32(_SQRT_HALF_BITS)) >> i32(23)


def _parts(scope: Scope, x: Expr) -> tuple[Expr, Expr]:
    """Return (f, k) with x = (1 + f) * 2**k for positive finite x, denormals included. k is integral, float32."""
    denormal = x < f32(_SMALLEST_NORMAL)
    bits = scope.let(to_bits(tir.Select(denormal, x * f32(2.0**23), x)))
    k = scope.let(_exponent(bits))
    f = from_bits(bits - (k << i32(23))) - f32(1.0)
    return scope.let(f), scope.let(tir.Cast("float32", k) - tir.Select(denormal, f32(23.0), f32(0.0)))


def _tail(scope: Scope, f: Expr) -> Expr:
    """Return log(1 + f) - f."""
    return scope.let(f * f * (f * horner(f, _LOG) - f32(0.5)))


def _special(x: Expr, pole: float, result: Expr) -> Expr:
    """Return ``result`` for x between ``pole`` and infinity, -inf at the pole, inf at infinity, else NaN."""
    rest = tir.Select(x > f32(pole), x, tir.Select(tir.EQ(x, f32(pole)), f32(-INF), f32(NAN)))
    return tir.Select(tir.And(x > f32(pole), x < f32(INF)), result, rest)


def log(scope: Scope, x: Expr) -> Expr:
    """Return the natural logarithm."""
    f, k = _parts(scope, x)
    return _special(x, 0.0, k * f32(_LN2_HI) + (f + (_tail(scope, f) + k * f32(_LN2_LO))))


def log2(scope: Scope, x: Expr) -> Expr:
    """Return the logarithm to base 2."""
    f, k = _parts(scope, x)
    y = _tail(scope, f)
    return _special(x, 0.0, k + (f + (y + (y * f32(_LOG2_E_MINUS_1) + f * f32(_LOG2_E_MINUS_1)))))


def log10(scope: Scope, x: Expr) -> Expr:
    """Return the logarithm to base 10."""
    f, k = _parts(scope, x)
    y = _tail(scope, f)
    low = (f + y) * f32(_LOG10_E_LO) + k * f32(_LOG10_2_LO)
    return _special(x, 0.0, k * f32(_LOG10_2_HI) + (f * f32(_LOG10_E_HI) + (y * f32(_LOG10_E_HI) + low)))


def log1p(scope: Scope, x: Expr) -> Expr:
    """Return log(1 + x). It is accurate for small x: 1 + x is rounded only to find the exponent."""
    k = scope.let(_exponent(to_bits(x + f32(1.0))))
    half = scope.let(i32(0) - (k >> i32(1)))
    up, down = scope.let(pow2(half)), scope.let(pow2(i32(0) - k - half))
    f = scope.let(x * up * down + (up * down - f32(1.0)))
    k = scope.let(tir.Cast("float32", k))
    result = k * f32(_LN2_HI) + (f + (_tail(scope, f) + k * f32(_LN2_LO)))
    # Zero keeps its sign, which the sum above would lose.
    return tir.Select(tir.EQ(x, f32(0.0)), x, _special(x, -1.0, result))


def asinh(scope: Scope, x: Expr) -> Expr:
    """Return the inverse hyperbolic sine."""
    a = scope.let(fabs(x))
    near = scope.let(at_most(f32(_FAR), a))
    u = scope.let(near * near)
    t = near + u / (tir.sqrt(u + f32(1.0)) + f32(1.0))
    far = a > f32(_FAR)
    y = log1p(scope, scope.let(tir.Select(far, a, t)))
    return with_sign_of(tir.Select(far, y + f32(_LN2), y), x)


def acosh(scope: Scope, x: Expr) -> Expr:
    """Return the inverse hyperbolic cosine, or NaN below 1."""
    far = x > f32(_FAR)
    t = scope.let(at_most(f32(_FAR), x) - f32(1.0))
    y = log1p(scope, scope.let(tir.Select(far, x, t + tir.sqrt(t * t + t * f32(2.0)))))
    return tir.Select(x < f32(1.0), f32(NAN), tir.Select(far, y + f32(_LN2), y))


def atanh(scope: Scope, x: Expr) -> Expr:
    """Return the inverse hyperbolic tangent: infinite at -1 and 1, NaN beyond."""
    a = scope.let(fabs(x))
    return with_sign_of(log1p(scope, scope.let(quotient(a + a, f32(1.0) - a))) * f32(0.5), x)
