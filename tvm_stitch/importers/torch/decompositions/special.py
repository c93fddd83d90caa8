# SPDX-License-Identifier: Apache-2.0
"""Special functions in PyTorch's core operators: error functions, gamma functions, logarithms of sums.

Half types are computed in float32. float64 keeps the operator, which is then refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def special_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by PyTorch's overloads."""
    return {
        aten.digamma.default: _of_floats(_digamma),
        aten.erfc.default: _of_floats(_erfc),
        aten.erfinv.default: _of_floats(_erfinv),
        aten.lgamma.default: _of_floats(_lgamma),
        aten.logaddexp.default: _logaddexp,
        aten.logaddexp2.default: _logaddexp2,
        aten.erf.default: _erf,
    }


def _of_floats(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
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
    t = 1.0 / (1.0 + 0.5 * size)
    total = torch.full_like(x, _ERFC[-1])
    for coefficient in reversed(_ERFC[:-1]):
        total = total * t + coefficient
    tail = t * torch.exp(-size * size + total)
    tail = torch.where(x < 0, 2.0 - tail, tail)
    return torch.where(size < 0.5, 1.0 - torch.erf(x), tail)


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
    w = -torch.log((1.0 - x) * (1.0 + x))

    def series(coefficients: tuple[float, ...], at: Any) -> Any:
        total = torch.full_like(x, coefficients[0])
        for coefficient in coefficients[1:]:
            total = total * at + coefficient
        return total

    near, far = series(_NEAR, w - 2.5), series(_FAR, torch.sqrt(torch.clamp(w, min=5.0)) - 3.0)
    result = torch.where(w < 5.0, near, far) * x
    return torch.where(x.abs() == 1.0, x * math.inf, result)


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


def _logaddexp(a: Any, b: Any) -> Any:
    """log(exp(a) + exp(b)), which keeps infinities."""
    if a.is_complex() or b.is_complex():
        return NotImplemented
    dtype = torch.promote_types(a.dtype, b.dtype)
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    a, b = a.to(wide), b.to(wide)
    large, small = torch.maximum(a, b), torch.minimum(a, b)
    result = large + torch.log1p(torch.exp(small - large))
    return torch.where(torch.logical_and(torch.isinf(large), a == b), a, result).to(dtype)


def _logaddexp2(a: Any, b: Any) -> Any:
    dtype = torch.promote_types(a.dtype, b.dtype)
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    a, b = a.to(wide), b.to(wide)
    large, small = torch.maximum(a, b), torch.minimum(a, b)
    result = large + torch.log1p(torch.exp2(small - large)) * (1.0 / math.log(2.0))
    return torch.where(torch.logical_and(torch.isinf(large), a == b), a, result).to(dtype)
