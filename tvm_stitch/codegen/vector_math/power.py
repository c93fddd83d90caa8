# SPDX-License-Identifier: Apache-2.0
"""pow and hypot of float32, computed in float64 lanes where float32 would lose digits."""

from __future__ import annotations

from ...compat import tir
from .scope import (
    EXPONENT_BITS,
    INF,
    NAN,
    SIGN_BIT,
    Expr,
    Scope,
    at_least,
    at_most,
    f32,
    f64,
    fabs,
    from_bits,
    horner,
    i32,
    magnitude_bits,
    nearest_int,
    pow2,
    quotient,
    to_bits,
)

# log2((1 + s) / (1 - s)) / s in s^2 for mantissas in [sqrt(1/2), sqrt(2)], 1.3e-11 relative.
_LOG2 = (2.8853900817901525, 0.9617966732680467, 0.5770835977703341, 0.41167200789175046, 0.3407424420615669)
# (2^r - 1) / r on [-1/2, 1/2], 2e-9 relative to 2^r.
_EXP2 = (
    0.6931472028809935, 0.24022647910287126, 0.05550332409573075, 0.009618437606038832, 0.0013398900208517138,
    0.00015353341121724948,
)  # fmt: skip
_SQRT_HALF_BITS = 0x3F3504F3
_SMALLEST_NORMAL = 1.1754943508222875e-38
_MAX = 3.4028234663852886e38
# The magnitude of infinite logarithms. It is finite, so that a zero exponent times it is zero and not NaN.
_HUGE = 1e300
# Constant integer exponents in between are multiplied out. Each multiplication adds half a unit of error.
_FEWEST, _MOST = -3, 5


def _log2(scope: Scope, x: Expr) -> Expr:
    """Return log2(|x|) in float64 for any float32: -1e300 at zero, 1e300 at infinity, NaN for NaN."""
    a = scope.let(fabs(x))
    denormal = a < f32(_SMALLEST_NORMAL)
    bits = scope.let(to_bits(tir.Select(denormal, a * f32(2.0**23), a)))
    k = scope.let((bits - i32(_SQRT_HALF_BITS)) >> i32(23))
    m = scope.let(tir.Cast("float64", from_bits(bits - (k << i32(23)))))
    s = scope.let((m - f64(1.0)) / (m + f64(1.0)))
    k = tir.Cast("float64", k - tir.Select(denormal, i32(23), i32(0)))
    result = s * horner(scope.let(s * s), _LOG2) + k
    top = scope.let(magnitude_bits(x))
    result = tir.Select(top < i32(EXPONENT_BITS), result, f64(_HUGE))
    result = tir.Select(top > i32(EXPONENT_BITS), f64(NAN), result)
    return tir.Select(tir.EQ(top, i32(0)), f64(-_HUGE), result)


def _exp2(scope: Scope, t: Expr) -> Expr:
    """Return 2**t as float32 for a float64 t. It is infinite or zero past the ends of the range, and NaN stays."""
    t = scope.let(at_most(f64(200.0), at_least(f64(-200.0), t)))
    n = scope.let(nearest_int(t, 256))
    r = scope.let(t - tir.Cast("float64", n))
    p = tir.Cast("float32", r * horner(r, _EXP2) + f64(1.0))
    half = scope.let(n >> i32(1))  # two factors reach denormal and infinite results
    return p * pow2(half) * pow2(n - half)


def power(scope: Scope, x: Expr, y: Expr) -> Expr:
    """Return x**y with C's special cases. The usual constant exponents become multiplications and square roots."""
    if isinstance(y, tir.FloatImm):
        short = _constant_power(scope, x, float(y.value))
        if short is not None:
            return short
    # An infinite exponent acts as the largest finite one, which is an even integer.
    clamped = scope.let(at_most(f32(_MAX), at_least(f32(-_MAX), y)))
    result = scope.let(_exp2(scope, tir.Cast("float64", clamped) * _log2(scope, x)))
    # From 2**24 on every float is an even integer. Min and Max in this order drop NaN, undefined in the cast.
    small = scope.let(tir.Max(tir.Min(y, f32(2.0**24)), f32(-(2.0**24))))
    whole = scope.let(tir.Cast("int32", small))
    integral = tir.EQ(tir.Cast("float32", whole), small)
    odd = tir.And(integral, tir.EQ(whole & i32(1), i32(1)))
    sign = tir.Select(odd, to_bits(x) & i32(SIGN_BIT), i32(0))
    undefined = tir.And(tir.And(x < f32(0.0), x > f32(-INF)), tir.Not(integral))
    result = tir.Select(undefined, f32(NAN), from_bits(to_bits(result) | sign))
    return tir.Select(tir.Or(tir.EQ(y, f32(0.0)), tir.EQ(x, f32(1.0))), f32(1.0), result)


def _constant_power(scope: Scope, x: Expr, y: float) -> Expr | None:
    if y == 0.0:
        return f32(1.0)
    if abs(y) == 0.5:
        unsigned = tir.Select(tir.EQ(x, f32(0.0)), f32(0.0), x)  # -0 becomes 0
        root = tir.Select(tir.EQ(x, f32(-INF)), f32(INF), tir.sqrt(unsigned))
        return root if y > 0 else quotient(f32(1.0), root)
    if not (_FEWEST <= y <= _MOST and y == int(y)):
        return None
    base = x if y > 0 else scope.let(quotient(f32(1.0), x))
    return _product(scope, base, int(abs(y)))


def _product(scope: Scope, x: Expr, n: int) -> Expr:
    """Return x**n by repeated squaring."""
    result: Expr | None = None
    square = x
    while True:
        if n & 1:
            result = square if result is None else result * square
        n >>= 1
        if not n:
            assert result is not None
            return result
        square = scope.let(square * square)


def hypot(scope: Scope, x: Expr, y: Expr) -> Expr:
    """Return sqrt(x*x + y*y) without intermediate overflow. It is infinite if either is, even if the other is NaN."""
    wide_x, wide_y = scope.let(tir.Cast("float64", x)), scope.let(tir.Cast("float64", y))
    root = tir.Cast("float32", tir.sqrt(wide_x * wide_x + wide_y * wide_y))
    infinite = tir.Or(tir.EQ(fabs(x), f32(INF)), tir.EQ(fabs(y), f32(INF)))
    return tir.Select(infinite, f32(INF), root)
