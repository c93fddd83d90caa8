# SPDX-License-Identifier: Apache-2.0
"""Incomplete gamma functions in PyTorch's core operators, for float32.

Below ``a + 1`` a series is added up, and above it a continued fraction is evaluated (Lentz). Both are loops that end
once no number changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.while_loop import while_loop_op

aten = torch.ops.aten

_EXACT = 6e-8
_STEPS = 2000.0
_LEAST = 1e-30


def gamma_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by PyTorch's overloads."""
    return {aten.igamma.default: _lower, aten.igammac.default: _upper}


def _lower(a: Any, x: Any) -> Any:
    return _incomplete(a, x, False)


def _upper(a: Any, x: Any) -> Any:
    return _incomplete(a, x, True)


def _incomplete(a: Any, x: Any, upper: bool) -> Any:
    """Return the regularized integral up to x, or from x on."""
    dtype = torch.result_type(a, x)
    if dtype == torch.float64 or not dtype.is_floating_point:
        return NotImplemented
    a, x = torch.broadcast_tensors(a.to(torch.float32), x.to(torch.float32))
    inside = torch.logical_and(
        torch.logical_and(a > 0.0, x > 0.0), torch.logical_and(a < math.inf, x < math.inf)
    )
    own, at = torch.where(inside, a, 1.0), torch.where(inside, x, 1.0)
    by_series = at < own + 1.0
    factor = _factor(own, at)
    below = factor * _series(own, torch.where(by_series, at, 0.0))
    above = factor * own * _fraction(own, torch.where(by_series, own + 1.0, at))
    result = (
        torch.where(by_series, 1.0 - below, above) if upper else torch.where(by_series, below, 1.0 - above)
    )
    none, all_of_it = (1.0, 0.0) if upper else (0.0, 1.0)
    result = torch.where(inside, result, math.nan)
    result = torch.where(x == math.inf, all_of_it, result)
    result = torch.where(a == math.inf, torch.where(x == math.inf, math.nan, none), result)
    result = torch.where(x == 0.0, none, result)
    result = torch.where(a == 0.0, torch.where(x > 0.0, all_of_it, math.nan), result)
    return torch.where(torch.logical_or(a < 0.0, x < 0.0), math.nan, result).to(dtype)


def _factor(a: Any, x: Any) -> Any:
    """Return ``x ** a * exp(-x) / gamma(a + 1)``. From 8 on it is Stirling's, whose terms do not cancel."""
    small, large = torch.clamp(a, max=8.0), torch.clamp(a, min=8.0)
    direct = torch.exp(small * torch.log(x) - x - torch.lgamma(small + 1.0))
    distance = (x - large) / large
    inverse = 1.0 / large
    rest = inverse * (1.0 / 12.0 - inverse * inverse * (1.0 / 360.0))
    far = torch.exp(large * (torch.log1p(distance) - distance) - rest) * torch.rsqrt(2.0 * math.pi * large)
    return torch.where(a < 8.0, direct, far)


def _series(a: Any, x: Any) -> Any:
    """Return the sum of the products of ``x / (a + k)``."""

    def goes_on(k: Any, term: Any, total: Any, a: Any, x: Any) -> Any:
        return torch.logical_and((term > total * _EXACT).any(), k < _STEPS)

    def step(k: Any, term: Any, total: Any, a: Any, x: Any) -> Any:
        term = term * (x / (a + k))
        return k + 1.0, term, total + term

    one = torch.ones([], dtype=torch.float32, device=a.device)
    first = torch.ones_like(a)
    return while_loop_op(goes_on, step, (one, first, first.clone()), (a.clone(), x.clone()))[2]


def _fraction(a: Any, x: Any) -> Any:
    """Return ``gamma(a, x) / (x ** a * exp(-x))``."""
    b = x + 1.0 - a
    inverse = 1.0 / torch.where(b.abs() < _LEAST, _LEAST, b)

    def goes_on(k: Any, c: Any, d: Any, value: Any, change: Any, a: Any, x: Any) -> Any:
        return torch.logical_and(((change - 1.0).abs() > 2.0 * _EXACT).any(), k < _STEPS)

    def step(k: Any, c: Any, d: Any, value: Any, change: Any, a: Any, x: Any) -> Any:
        numerator, b = k * (a - k), x + (2.0 * k + 1.0) - a
        d, c = numerator * d + b, b + numerator / c
        d = 1.0 / torch.where(d.abs() < _LEAST, _LEAST, d)
        c = torch.where(c.abs() < _LEAST, _LEAST, c)
        change = c * d
        return k + 1.0, c, d, value * change, change

    one = torch.ones([], dtype=torch.float32, device=a.device)
    states = (one, torch.full_like(a, 1.0 / _LEAST), inverse, inverse.clone(), torch.zeros_like(a))
    return while_loop_op(goes_on, step, states, (a.clone(), x.clone()))[3]
