# SPDX-License-Identifier: Apache-2.0
"""exp, exp2, exp10, sigmoid, tanh, sinh, cosh and erf of float32, without branches, tables or libm calls."""

from __future__ import annotations

from typing import NamedTuple

from ...compat import tir
from ...repairs.tir.device_math import ERF_DENOMINATOR, ERF_NUMERATOR
from .scope import Expr, Scope, at_most, f32, fabs, from_bits, horner, i32, to_bits, with_sign_of

# Minimax fits by Lawson iteration. The error is that of the polynomial alone, relative to the function.
# (e^r - 1 - r) / r^2 on [-ln(2)/2, ln(2)/2], 3e-9.
_EXP = (
    0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.008368724957108498, 0.0013814581325277686,
)  # fmt: skip
# (2^r - 1) / r on [-1/2, 1/2], 2e-9
_EXP2 = (
    0.6931471824645996, 0.24022647738456726, 0.055503323674201965, 0.009618437848985195, 0.0013398900628089905,
    0.00015353341586887836,
)  # fmt: skip
# (10^r - 1) / r on [-log10(2)/2, log10(2)/2], 2e-9
_EXP10 = (
    2.3025851249694824, 2.6509487628936768, 2.0346498489379883, 1.1712926626205444, 0.5420256853103638,
    0.20632153749465942,
)  # fmt: skip
# (sinh(x) / x - 1) / x^2 in x^2 on [-1, 1], 6e-11.
_SINH = (0.1666666716337204, 0.008333350531756878, 0.0001983606634894386, 2.8174395083624404e-06)
# tanh(x) / x as P(x^2) / Q(x^2) on |x| <= 9.02, 2e-8. All coefficients are positive, so nothing cancels.
_TANH_P = (
    0.9999999790124884, 0.13379718281770883, 0.0034940349596155706, 2.058348750066655e-05,
    1.3319079728567004e-08,
)  # fmt: skip
_TANH_Q = (1.0, 0.46713033521758196, 0.02587107473716513, 0.000328309347995184, 7.762022821485447e-07)

# ln 2 and log10 2 in two parts. The first has so few bits that its product with an exponent is exact.
_LN2_HI, _LN2_LO = 0.693359375, -2.12194440054690582e-4
_LOG10_2_HI, _LOG10_2_LO = 0.301025390625, 4.60503896104668e-6
_LOG2_E, _LOG2_10 = 1.4426950408889634, 3.321928094887362

# Below 2**-150 a result rounds to zero. Lanes there are computed at 0 and replaced. Multiplying into a denormal costs
# a microcode assist on many cores, and masked softmax is full of such lanes.
_LOG_SMALLEST, _LOG10_SMALLEST, _LOG2_SMALLEST = -103.972084, -45.154499, -150.0


class _Count(NamedTuple):
    """An integer: in float32, and plus a bias in the low bits of an int32, which become an exponent."""

    number: Expr
    bits: Expr

    def scaled(self, scope: Scope, x: Expr) -> Expr:
        """Return x * 2**number for a number in [-252, 252], with the bias _TWO_FACTORS. Each factor has half."""
        half = scope.let(self.bits >> i32(1))
        return x * _exponent(half) * _exponent(self.bits - half)

    def scaled_down(self, x: Expr) -> Expr:
        """Return x * 2**number for a number in [-190, 63], with the bias _ONE_FACTOR."""
        return x * _exponent(self.bits) * f32(2.0**-64)


_TWO_FACTORS, _ONE_FACTOR = 254, 127 + 64
_WHOLE = 1.5 * 2.0**23


def _exponent(n: Expr) -> Expr:
    """Return 2**(n - 127) of an int32 of which the low 8 bits count."""
    return from_bits(n << i32(23))


def _nearest(scope: Scope, x: Expr, bias: int = _TWO_FACTORS) -> _Count:
    """Return the integer nearest to a float32 x with |x| < 2**21 (some integer, or NaN, for NaN).

    A float32 near 1.5 * 2**23 has no bits after the point, so adding it rounds. The low bits of the sum are the
    integer with the bias. Access through bits hides a cancellation from TVM's simplifier: over the reals, the later
    subtraction would undo the addition.
    """
    bits = scope.let(to_bits(x + f32(_WHOLE + bias)))
    return _Count(scope.let(from_bits(bits) - f32(_WHOLE + bias)), bits)


def _exp_parts(scope: Scope, x: Expr, bias: int = _TWO_FACTORS) -> tuple[Expr, _Count]:
    """Return (p, n) with exp(x) = p * 2**n for float32 x in [-126, 126], or NaN in p."""
    x = scope.let(x)
    n = _nearest(scope, x * f32(_LOG2_E), bias)
    r = scope.let((x - n.number * f32(_LN2_HI)) - n.number * f32(_LN2_LO))
    return (r * r) * horner(r, _EXP) + r + f32(1.0), n


def exp(scope: Scope, x: Expr) -> Expr:
    """Return e**x."""
    vanishes = x < f32(_LOG_SMALLEST)
    p, n = _exp_parts(scope, tir.Select(vanishes, f32(0.0), at_most(f32(89.0), x)))
    return tir.Select(vanishes, f32(0.0), n.scaled(scope, p))


def exp_of_negative(scope: Scope, x: Expr) -> Expr:
    """Return e**x of a float32 x <= 0 (or NaN), with one factor fewer."""
    vanishes = x < f32(_LOG_SMALLEST)
    p, n = _exp_parts(scope, tir.Select(vanishes, f32(0.0), x), _ONE_FACTOR)
    return tir.Select(vanishes, f32(0.0), n.scaled_down(p))


def exp2(scope: Scope, x: Expr) -> Expr:
    """Return 2**x."""
    vanishes = x <= f32(_LOG2_SMALLEST)
    x = scope.let(tir.Select(vanishes, f32(0.0), at_most(f32(129.0), x)))
    n = _nearest(scope, x)
    r = scope.let(x - n.number)
    return tir.Select(vanishes, f32(0.0), n.scaled(scope, r * horner(r, _EXP2) + f32(1.0)))


def exp10(scope: Scope, x: Expr) -> Expr:
    """Return 10**x."""
    vanishes = x < f32(_LOG10_SMALLEST)
    x = scope.let(tir.Select(vanishes, f32(0.0), at_most(f32(39.0), x)))
    n = _nearest(scope, x * f32(_LOG2_10))
    r = scope.let((x - n.number * f32(_LOG10_2_HI)) - n.number * f32(_LOG10_2_LO))
    return tir.Select(vanishes, f32(0.0), n.scaled(scope, r * horner(r, _EXP10) + f32(1.0)))


def sigmoid(scope: Scope, x: Expr) -> Expr:
    """Return 1 / (1 + e**-x).

    It is computed from e = e**-|x|, so that neither end overflows and small results keep their digits. The
    denominator is in [1, 2], where a parabola is near its reciprocal. The residue 1 - d y is the Chebyshev polynomial
    T3, at most 1/99. A step of Newton's leaves 1e-4, and the correction of the quotient 1e-8. That takes fewer cycles
    than a division of long vectors.
    """
    e = scope.let(exp_of_negative(scope, scope.let(f32(0.0) - fabs(x))))
    return tir.Select(x < f32(0.0), e, f32(1.0)) / (e + f32(1.0))


def tanh(scope: Scope, x: Expr) -> Expr:
    """Return tanh(x), a rational function of degree 9 over 8 on |x| <= 9.02, beyond which the result is 1."""
    a = scope.let(at_most(f32(9.02), fabs(x)))
    u = scope.let(a * a)
    ratio = a * horner(u, _TANH_P) / horner(u, _TANH_Q)
    return with_sign_of(at_most(f32(1.0), ratio), x)


def _half_exp(scope: Scope, a: Expr) -> Expr:
    """Return e**a / 2 for a >= 0. It is finite a little beyond the point where e**a overflows."""
    p, n = _exp_parts(scope, at_most(f32(90.0), a))
    return scope.let(n.scaled(scope, p * f32(0.5)))


def cosh(scope: Scope, x: Expr) -> Expr:
    """Return (e**x + e**-x) / 2."""
    half = _half_exp(scope, scope.let(fabs(x)))
    return half + f32(0.25) / half


def sinh(scope: Scope, x: Expr) -> Expr:
    """Return (e**x - e**-x) / 2. On [-1, 1], where that would cancel, a polynomial is used."""
    a = scope.let(fabs(x))
    half = _half_exp(scope, a)
    u = scope.let(a * a)
    near = u * a * horner(u, _SINH) + a
    return with_sign_of(tir.Select(a < f32(1.0), near, half - f32(0.25) / half), x)


def erf(scope: Scope, x: Expr) -> Expr:
    """Return erf(x), exactly 1 in magnitude from |x| = 3.92 on. GELU multiplies 1 + erf(x) by any x, however large."""
    a = scope.let(at_most(f32(3.93), fabs(x)))
    u = scope.let(a * a)
    inner = at_most(f32(1.0), a * horner(u, ERF_NUMERATOR) / horner(u, ERF_DENOMINATOR))
    return with_sign_of(tir.Select(a >= f32(3.92), f32(1.0), inner), x)
