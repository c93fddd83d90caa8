# SPDX-License-Identifier: Apache-2.0
"""Functions whose number of steps depends on their operands: common divisors, and orthogonal polynomials.

They are written with ``torch.while_loop``, which is imported as a loop. A polynomial whose degree is a small number is
written out instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._higher_order_ops.while_loop import while_loop_op

aten = torch.ops.aten

WRITTEN_OUT = 16
"""The largest degree of a polynomial that needs no loop."""


def loop_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by PyTorch's overloads."""
    found: dict[Any, Callable[..., Any]] = {aten.gcd.default: _gcd, aten.lcm.default: _lcm}
    for name, (polynomial, shifted) in _POLYNOMIALS.items():
        packet = getattr(aten, f"special_{name}")
        for overload in ("default", "x_scalar", "n_scalar"):
            found[getattr(packet, overload)] = _decomposition(polynomial, shifted)
    return found


def _gcd(a: Any, b: Any) -> Any:
    """Divide by Euclid's algorithm until all remainders are 0."""
    dtype = torch.promote_types(a.dtype, b.dtype)
    a, b = torch.broadcast_tensors(a.to(dtype).abs(), b.to(dtype).abs())

    def goes_on(_: Any, b: Any) -> Any:
        return (b != 0).any()

    def step(a: Any, b: Any) -> Any:
        done = b == 0
        rest = torch.fmod(a, torch.where(done, 1, b))
        return torch.where(done, a, b), torch.where(done, 0, rest).to(dtype)

    dense = torch.contiguous_format  # the step returns dense tensors, also if broadcast ones have no elements
    return while_loop_op(goes_on, step, (a.clone(memory_format=dense), b.clone(memory_format=dense)), ())[0]


def _lcm(a: Any, b: Any) -> Any:
    dtype = torch.promote_types(a.dtype, b.dtype)
    a, b = a.to(dtype), b.to(dtype)
    divisor = _gcd(a, b)
    quotient = torch.div(a, torch.where(divisor == 0, 1, divisor).to(dtype), rounding_mode="trunc")
    return (quotient * b).abs()


@dataclass(frozen=True)
class _Polynomial:
    """A family of orthogonal polynomials: ``p[k + 1] = (a * x + b) * p[k] - c * p[k - 1]`` from degree 1 on.

    Attributes:
        first: the polynomial of degree 1.
        factors: returns a, b and c for a number k, or a tensor of no axis.
        most: the largest degree, beyond which PyTorch returns NaN.
        waves: returns the polynomial of high degrees between -1 and 1, and at these ends, or None.
    """

    first: Callable[[Any], Any]
    factors: Callable[[Any], tuple[Any, Any, Any]]
    most: float = math.inf
    waves: tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]] | None = None
    beyond: float = math.inf


def _sign(x: Any, n: Any) -> Any:
    return torch.where(torch.logical_or(x > 0, torch.remainder(n, 2.0) == 0), 1.0, -1.0)


def _half(x: Any, n: Any) -> tuple[Any, Any]:
    angle = torch.acos(x)
    return (n + 0.5) * angle, angle * 0.5


def _third(x: Any, n: Any) -> Any:
    whole, half = _half(x, n)
    return torch.cos(whole) / torch.cos(half)


def _fourth(x: Any, n: Any) -> Any:
    whole, half = _half(x, n)
    return torch.sin(whole) / torch.sin(half)


def _twice(_: Any) -> tuple[Any, Any, Any]:
    return 2.0, 0.0, 1.0


_T = _Polynomial(lambda x: x, _twice, waves=(lambda x, n: torch.cos(n * torch.acos(x)), _sign), beyond=6)
_U = _Polynomial(
    lambda x: 2.0 * x,
    _twice,
    waves=(
        lambda x, n: torch.sin((n + 1.0) * torch.acos(x)) / torch.sin(torch.acos(x)),
        lambda x, n: _sign(x, n) * (n + 1.0),
    ),
    beyond=8,
)
_V = _Polynomial(
    lambda x: 2.0 * x - 1.0,
    _twice,
    waves=(_third, lambda x, n: torch.where(x > 0, 1.0, _sign(x, n) * (2.0 * n + 1.0))),
    beyond=8,
)
_W = _Polynomial(
    lambda x: 2.0 * x + 1.0,
    _twice,
    waves=(_fourth, lambda x, n: torch.where(x > 0, 2.0 * n + 1.0, _sign(x, n))),
    beyond=8,
)
_POLYNOMIALS = {
    **{f"chebyshev_polynomial_{name}": (each, False) for name, each in zip("tuvw", (_T, _U, _V, _W))},
    **{f"shifted_chebyshev_polynomial_{name}": (each, True) for name, each in zip("tuvw", (_T, _U, _V, _W))},
    "hermite_polynomial_h": (_Polynomial(lambda x: 2.0 * x, lambda k: (2.0, 0.0, 2.0 * k), 128), False),
    "hermite_polynomial_he": (_Polynomial(lambda x: x, lambda k: (1.0, 0.0, k), 128), False),
    "laguerre_polynomial_l": (
        _Polynomial(
            lambda x: 1.0 - x, lambda k: (-1.0 / (k + 1.0), (2.0 * k + 1.0) / (k + 1.0), k / (k + 1.0))
        ),
        False,
    ),
    "legendre_polynomial_p": (
        _Polynomial(lambda x: x, lambda k: ((2.0 * k + 1.0) / (k + 1.0), 0.0, k / (k + 1.0))),
        False,
    ),
}


def _decomposition(polynomial: _Polynomial, shifted: bool) -> Callable[[Any, Any], Any]:
    def decomposed(x: Any, n: Any) -> Any:
        of = x if isinstance(x, torch.Tensor) else n
        dtype = torch.result_type(x, n)
        dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
        if dtype == torch.float64:
            return NotImplemented
        degree = int(n) if isinstance(n, (int, float)) else None
        x, n = (
            each.to(torch.float32)
            if isinstance(each, torch.Tensor)
            else torch.full([], each, dtype=torch.float32, device=of.device)
            for each in (x, n)
        )
        x, n = torch.broadcast_tensors(2.0 * x - 1.0 if shifted else x, torch.trunc(n))
        if of.numel() == 0:
            return x.to(dtype)
        return _value(polynomial, x, n, degree).to(dtype)

    return decomposed


def _value(polynomial: _Polynomial, x: Any, n: Any, degree: int | None) -> Any:
    """Return the polynomials of degrees n at x. A degree that is the same everywhere may be known."""
    known = polynomial.waves is None
    beyond = torch.full_like(x, 0.0).to(torch.bool)
    if polynomial.waves is not None:
        beyond = torch.logical_and(n > polynomial.beyond, x.abs() < 1.0)
        beyond = torch.logical_or(beyond, x.abs() == 1.0)
    steps = torch.clamp(torch.where(beyond, 0.0, n), max=min(polynomial.most, 2.0**24))
    result = _by_recurrence(polynomial, x, steps, degree)
    if not known:
        assert polynomial.waves is not None
        inside, ends = polynomial.waves
        waves = torch.where(x.abs() == 1.0, ends(x, n), inside(torch.clamp(x, -1.0, 1.0), n))
        result = torch.where(beyond, waves, result)
    result = torch.where(n > polynomial.most, math.nan, result)
    return torch.where(n < 0.0, 0.0, torch.where(n == 0.0, 1.0, result))


def _by_recurrence(polynomial: _Polynomial, x: Any, steps: Any, degree: int | None) -> Any:
    def after(k: Any, p: Any, q: Any, x: Any, steps: Any) -> tuple[Any, Any]:
        a, b, c = polynomial.factors(k)
        following = (a * x + b) * q - c * p
        goes_on = k < steps
        return torch.where(goes_on, q, p), torch.where(goes_on, following, q)

    p, q = torch.ones_like(x), polynomial.first(x) + torch.zeros_like(x)
    if degree is not None and degree <= WRITTEN_OUT:
        for k in range(1, degree):
            p, q = after(float(k), p, q, x, steps)
        return q
    k = torch.ones([], dtype=torch.float32, device=x.device)

    def goes_on(k: Any, p: Any, q: Any, x: Any, steps: Any) -> Any:
        return (k < steps).any()

    def step(k: Any, p: Any, q: Any, x: Any, steps: Any) -> Any:
        p, q = after(k, p, q, x, steps)
        return k + 1.0, p.clone(), q.clone()

    return while_loop_op(goes_on, step, (k, p, q.clone()), (x.clone(), steps.clone()))[2]
