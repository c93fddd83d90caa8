# SPDX-License-Identifier: Apache-2.0
"""Special functions in PyTorch's core operators: error functions, gamma functions, logarithms of sums.

Half types are computed in float32. float64 keeps the operator, which is then refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .halves import wide_type

aten = torch.ops.aten


def special_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by PyTorch's overloads."""
    return {
        aten.polygamma.default: _polygamma,
        aten.special_erfcx.default: of_floats(_erfcx),
        aten.special_ndtri.default: of_floats(_ndtri),
        aten.special_zeta.default: _zeta,
        aten.special_zeta.other_scalar: _zeta,
        aten.special_zeta.self_scalar: _zeta,
        aten.digamma.default: of_floats(_digamma),
        aten.erfc.default: of_floats(_erfc),
        aten.erfinv.default: of_floats(_erfinv),
        aten.lgamma.default: of_floats(_lgamma),
        aten.logaddexp.default: _logaddexp,
        aten.logaddexp2.default: _logaddexp2,
        aten.erf.default: _erf,
    }


def of_floats(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decomposition that computes a function in float32. float64 keeps the operator."""

    def decomposed(x: Any) -> Any:
        if x.dtype == torch.float64 or x.is_complex():
            return NotImplemented
        dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
        return function(x.to(torch.float32)).to(dtype)

    return decomposed


def _erf(x: Any) -> Any:
    """Compute the error function of a half type in float32."""
    if x.dtype not in (torch.float16, torch.bfloat16):
        return NotImplemented
    return torch.erf(x.float()).to(x.dtype)


def _erfc(x: Any) -> Any:
    """Compute one minus the error function up to 0.5, and behind it a Chebyshev series with exact small numbers.

    The series is the one of W. J. Cody's rational form in *Numerical Recipes* (erfccheb): an error of 1.2e-7.
    """
    size = x.abs()
    t, total = _erfc_series(size)
    tail = t * torch.exp(-size * size + total)
    tail = torch.where(x < 0, 2.0 - tail, tail)
    return torch.where(size < 0.5, 1.0 - torch.erf(x), tail)


def _erfc_series(size: Any) -> tuple[Any, Any]:
    """Return ``t`` and ``s`` with ``erfc(size) = t * exp(s - size ** 2)``."""
    t = 1.0 / (1.0 + 0.5 * size)
    total = torch.full_like(size, _ERFC[-1])
    for coefficient in reversed(_ERFC[:-1]):
        total = total * t + coefficient
    return t, total


def _erfcx(x: Any) -> Any:
    """Compute ``exp(x ** 2) * erfc(x)``. For negative x it grows like the exponential."""
    t, total = _erfc_series(x.abs())
    value = t * torch.exp(total)
    return torch.where(x < 0, 2.0 * torch.exp(x * x) - value, value)


_ERFC = (
    -1.26551223,
    1.00002368,
    0.37409196,
    0.09678418,
    -0.18628806,
    0.27886807,
    -1.13520398,
    1.48851587,
    -0.82215223,
    0.17087277,
)


def _erfinv(x: Any) -> Any:
    """M. Giles, *Approximating the erfinv function* (2010), for single precision."""
    result = _giles(x, -torch.log((1.0 - x) * (1.0 + x)))
    return torch.where(x.abs() == 1.0, x * math.inf, result)


def _ndtri(p: Any) -> Any:
    """Invert the normal distribution: by erfinv, and far from the middle by Newton's method for the logarithm."""
    small = torch.minimum(p, 1.0 - p)
    middle = math.sqrt(2.0) * _giles(2.0 * p - 1.0, -torch.log(4.0 * p * (1.0 - p)))
    log = torch.log(torch.clamp(small, max=1e-3))
    z = torch.sqrt(-2.0 * log)
    for _ in range(4):
        scaled = _erfcx(z * math.sqrt(0.5))
        z = z + (torch.log(0.5 * scaled) - 0.5 * z * z - log) * scaled * math.sqrt(0.5 * math.pi)
    tail = torch.where(p < 0.5, -z, z)
    result = torch.where(small < 1e-3, tail, middle)
    return torch.where(p == 0.0, -math.inf, torch.where(p == 1.0, math.inf, result))


def _giles(x: Any, w: Any) -> Any:
    """Return erfinv(x), given ``w = -log(1 - x ** 2)``."""

    def series(coefficients: tuple[float, ...], at: Any) -> Any:
        total = torch.full_like(x, coefficients[0])
        for coefficient in coefficients[1:]:
            total = total * at + coefficient
        return total

    near, far = series(_NEAR, w - 2.5), series(_FAR, torch.sqrt(torch.clamp(w, min=5.0)) - 3.0)
    return torch.where(w < 5.0, near, far) * x


_NEAR = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_FAR = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)


def _shifted(x: Any, least: float, steps: int) -> tuple[Any, list[tuple[Any, Any]]]:
    """Return x moved up by whole numbers until it is at least ``least``, with the numbers on the way.

    Each of these comes behind a mask that says whether the number was moved.
    """
    passed = []
    for _ in range(steps):
        below = x < least
        passed.append((below, x))
        x = torch.where(below, x + 1.0, x)
    return x, passed


def _lgamma(x: Any) -> Any:
    """Compute Stirling's series above 8, moved down by products, and reflected below 0.5."""
    reflected = x < 0.5
    y, passed = _shifted(torch.where(reflected, 1.0 - x, x), 8.0, 8)
    product = torch.ones_like(x)
    for below, each in passed:
        product = torch.where(below, product * each, product)
    inverse = 1.0 / y
    square = inverse * inverse
    series = inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0)))
    log = (y - 0.5) * torch.log(y) - y + 0.5 * math.log(2.0 * math.pi) + series - torch.log(product)
    log = torch.where(torch.isinf(x), math.inf, log)
    fraction = x - torch.floor(x)
    sine = torch.abs(torch.sin(math.pi * torch.minimum(fraction, 1.0 - fraction)))
    mirrored = math.log(math.pi) - torch.log(sine) - log
    result = torch.where(reflected, mirrored, log)
    result = torch.where(torch.logical_or(x == 1.0, x == 2.0), 0.0, result)
    return torch.where(torch.isinf(x), math.inf, result)


def _digamma(x: Any) -> Any:
    """Compute an asymptotic series above 8, moved down by a sum of inverses, and reflected at 0."""
    reflected = x < 0.0
    y, passed = _shifted(torch.where(reflected, 1.0 - x, x), 8.0, 8)
    total = torch.zeros_like(x)
    for below, each in passed:
        total = torch.where(below, total - 1.0 / each, total)
    inverse = 1.0 / y
    square = inverse * inverse
    series = square * (1.0 / 12.0 - square * (1.0 / 120.0 - square * (1.0 / 252.0)))
    value = torch.log(y) - 0.5 * inverse - series + total
    fraction = x - torch.floor(x)
    mirrored = value - math.pi / torch.tan(math.pi * fraction)
    result = torch.where(reflected, mirrored, value)
    result = torch.where(torch.logical_and(reflected, fraction == 0.0), math.nan, result)
    return torch.where(x == 0.0, torch.where(torch.signbit(x), math.inf, -math.inf), result)


def _polygamma(n: int, x: Any) -> Any:
    """Compute derivatives of digamma as values of Hurwitz's zeta function."""
    if n == 0:
        return torch.digamma(x)
    if x.dtype == torch.float64 or n < 0:
        return NotImplemented
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    wide = x.to(torch.float32)
    sign = 1.0 if n % 2 else -1.0
    return (_hurwitz(torch.full_like(wide, n + 1.0), wide) * (sign * math.factorial(n))).to(dtype)


def _zeta(s: Any, q: Any) -> Any:
    dtype = torch.result_type(s, q)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    if dtype == torch.float64:
        return NotImplemented
    of = s if isinstance(s, torch.Tensor) else q
    s, q = (
        x.to(torch.float32)
        if isinstance(x, torch.Tensor)
        else torch.full([], x, dtype=torch.float32, device=of.device)
        for x in (s, q)
    )
    s, q = torch.broadcast_tensors(s, q)
    return _hurwitz(s, q).to(dtype)


def _hurwitz(s: Any, q: Any) -> Any:
    """Compute the sum of ``(q + k) ** -s`` over all natural numbers k.

    For negative q and whole s, the sum over all integers has a period of 1. It is that of the fraction of q.
    """
    whole, fraction = torch.floor(q), q - torch.floor(q)
    even = torch.remainder(s, 2.0) == 0.0
    positive = _hurwitz_of_positive(s, torch.where(q > 0.0, q, fraction))
    others = _hurwitz_of_positive(s, 1.0 - fraction) - _hurwitz_of_positive(s, 1.0 - torch.clamp(q, max=0.0))
    negative = torch.where(torch.floor(s) == s, positive + torch.where(even, others, -others), math.nan)
    result = torch.where(q > 0.0, positive, torch.where(q == whole, math.inf, negative))
    return torch.where(s == 1.0, math.inf, torch.where(s < 1.0, math.nan, result))


_TERMS = 9
_BERNOULLI = (1.0 / 12.0, -1.0 / 720.0, 1.0 / 30240.0, -1.0 / 1209600.0, 1.0 / 47900160.0)
"""Bernoulli numbers of even index, divided by the factorial of the index."""


def _hurwitz_of_positive(s: Any, q: Any) -> Any:
    """Add up some terms. Euler and Maclaurin's formula gives the sum of the others.

    The terms have an axis of their own. A power is much code, and so the program has only two of them.
    """
    natural = torch.arange(_TERMS, dtype=q.dtype, device=q.device).reshape(_TERMS, *[1] * q.dim())
    total = torch.pow(q + natural, -s).sum(0)
    at = q + float(_TERMS)
    power = torch.pow(at, -s)
    rest = power * at / (s - 1.0) + 0.5 * power
    factor = s * power / at
    for j, number in enumerate(_BERNOULLI):
        rest = rest + factor * number
        factor = factor * (s + (2.0 * j + 1.0)) * (s + (2.0 * j + 2.0)) / (at * at)
    return total + rest


def _logaddexp(a: Any, b: Any) -> Any:
    """log(exp(a) + exp(b)), which keeps infinities."""
    if a.is_complex() or b.is_complex():
        return NotImplemented
    dtype = torch.promote_types(a.dtype, b.dtype)
    wide = wide_type(dtype)
    a, b = a.to(wide), b.to(wide)
    large, small = torch.maximum(a, b), torch.minimum(a, b)
    result = large + torch.log1p(torch.exp(small - large))
    return torch.where(torch.logical_and(torch.isinf(large), a == b), a, result).to(dtype)


def _logaddexp2(a: Any, b: Any) -> Any:
    dtype = torch.promote_types(a.dtype, b.dtype)
    wide = wide_type(dtype)
    a, b = a.to(wide), b.to(wide)
    large, small = torch.maximum(a, b), torch.minimum(a, b)
    result = large + torch.log1p(torch.exp2(small - large)) * (1.0 / math.log(2.0))
    return torch.where(torch.logical_and(torch.isinf(large), a == b), a, result).to(dtype)
