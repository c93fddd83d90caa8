# SPDX-License-Identifier: Apache-2.0
"""Operators of numbers in PyTorch's core operators: signs, roots of sums of squares, divisions, distances."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table

from .halves import wide_type

aten = torch.ops.aten


def numeric_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by PyTorch's overloads."""
    return {
        aten._cdist_forward.default: _cdist,
        aten._euclidean_dist.default: lambda a, b: _cdist(a, b, 2.0, None),
        aten._pdist_forward.default: _pdist,
        aten._trilinear.default: _trilinear,
        aten.addbmm.default: _addbmm,
        aten.copysign.Scalar: _copysign,
        aten.copysign.Tensor: _copysign,
        aten.div.Tensor_mode: _rounded_quotient,
        aten.div.Scalar_mode: _rounded_quotient,
        aten.floor_divide.Scalar: lambda a, b: _rounded_quotient(a, b, rounding_mode="floor"),
        aten.floor_divide.default: lambda a, b: _rounded_quotient(a, b, rounding_mode="floor"),
        aten.hypot.default: _hypot,
        aten.kthvalue.default: _kthvalue,
        **{overload: _spaced(overload) for overload in _SPACED},
        aten.ldexp.Tensor: lambda x, exponent: x * torch.pow(2.0, exponent),
        aten.median.default: lambda x: _median(x.reshape(-1), 0)[0],
        aten.median.dim: _median,
        aten.mode.default: _mode,
        aten.nanmedian.default: lambda x: _nanmedian(x.reshape(-1), 0)[0],
        aten.nanmedian.dim: _nanmedian,
        aten.pow.Tensor_Tensor: _power,
        aten.pow.Scalar: _power,
    }


_SPACED = (aten.linspace.Scalar_Tensor, aten.linspace.Tensor_Scalar, aten.linspace.Tensor_Tensor)


def _spaced(overload: Any) -> Callable[..., Any]:
    """Return a decomposition of evenly spaced numbers. PyTorch's own one rounds integers otherwise than PyTorch."""
    known = decomposition_table[overload]

    def decomposed(start: Any, end: Any, steps: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
        if dtype is None or dtype.is_floating_point or dtype.is_complex:
            return known(start, end, steps, dtype=dtype, **kwargs)
        return _spaced_integers(start, end, steps, dtype)

    return decomposed


def _spaced_integers(start: Any, end: Any, steps: Any, dtype: Any) -> Any:
    """Return evenly spaced integers. The first half counts from the start, and the second from the end.

    PyTorch rounds once, after the product by the step and the sum, and then towards zero. The step is two numbers here
    whose products with positions are exact, and the sum carries its own error.
    """
    first, last = (
        (x if isinstance(x, torch.Tensor) else torch.full((), x)).to(dtype).to(torch.float64)
        for x in (start, end)
    )
    at = torch.arange(steps)
    if isinstance(steps, int) and steps < 2:
        return first.to(dtype).expand(steps).clone()
    step = (last - first) / (steps - 1)
    coarse = (step.view(torch.int64) & -(1 << 27)).view(torch.float64)
    in_front = at < steps // 2
    base = torch.where(in_front, first, last)
    count = torch.where(in_front, at, at - (steps - 1)).to(torch.float64)
    product, rest = coarse * count, (step - coarse) * count
    total = base + product
    added = total - base
    error = (base - (total - added)) + (product - added)
    return (total + (error + rest)).to(dtype)


def _copysign(x: Any, sign: Any) -> Any:
    dtype = torch.result_type(x, sign)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    size = x.to(dtype).abs()
    if isinstance(sign, (int, float)):
        return -size if math.copysign(1.0, sign) < 0 else size
    return torch.where(torch.signbit(sign), -size, size)


def _hypot(a: Any, b: Any) -> Any:
    """Scale by the larger of both, so that squares do not overflow. Half types are computed in float32."""
    dtype = torch.result_type(a, b)
    wide = wide_type(dtype)
    a, b = a.to(wide).abs(), b.to(wide).abs()
    large, small = torch.maximum(a, b), torch.minimum(a, b)
    ratio = torch.where(large == 0, 0.0, small / large).to(wide)
    root = large * torch.sqrt(ratio * ratio + 1)
    infinite = torch.logical_or(torch.isinf(a), torch.isinf(b))
    return torch.where(infinite, math.inf, root).to(dtype)


def _rounded_quotient(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    """Quotients of floats that are rounded down: PyTorch divides what the remainder leaves, which is exact."""
    dtype = torch.result_type(a, b)
    if rounding_mode != "floor" or not dtype.is_floating_point:
        return NotImplemented
    if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
        return NotImplemented
    wide = wide_type(dtype)
    a, b = (each.to(wide) if isinstance(each, torch.Tensor) else each for each in (a, b))
    quotient = torch.true_divide(a, b)
    if not isinstance(b, torch.Tensor):  # a number, which may be symbolic
        b = torch.full_like(quotient, b)
    elif not isinstance(a, torch.Tensor):
        a = torch.full_like(quotient, a)
    rest = torch.fmod(a, b)
    whole = (a - rest) / b
    whole = torch.where(torch.logical_and(rest != 0, (b < 0) != (rest < 0)), whole - 1, whole)
    down = torch.floor(whole)
    down = torch.where(whole - down > 0.5, down + 1, down)
    zero = torch.where(torch.signbit(quotient), -0.0, 0.0).to(wide)
    down = torch.where(whole != 0, down, zero)
    return torch.where(b == 0, quotient, down).to(dtype)


def _power(base: Any, exponent: Any) -> Any:
    """Powers of integers by squaring, one step for each of an exponent's six lowest bits.

    Powers of even numbers with exponents from 64 on are 0 in 64 bits. Those of odd numbers beyond 1 overflow there, and
    are not PyTorch's.
    """
    dtype = torch.result_type(base, exponent)
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return NotImplemented
    shape = torch.broadcast_shapes(*(x.shape for x in (base, exponent) if isinstance(x, torch.Tensor)))
    of = base if isinstance(base, torch.Tensor) else exponent
    base, exponent = (
        x.to(dtype).expand(shape) if isinstance(x, torch.Tensor) else of.new_full(shape, x, dtype=dtype)
        for x in (base, exponent)
    )
    result = torch.ones_like(base)
    square = base
    for bit in range(min(6, torch.iinfo(dtype).bits - int(dtype.is_signed))):
        odd = ((exponent >> bit) & 1) == 1
        result = torch.where(odd, result * square, result)
        square = square * square
    vanishes = torch.logical_and(exponent >= 64, (base & 1) == 0)
    result = torch.where(vanishes, 0, result).to(dtype)
    if not dtype.is_signed:
        return result
    inverse = torch.where(base == 1, 1, torch.where(base == -1, 1 - 2 * (exponent & 1), 0)).to(dtype)
    return torch.where(exponent < 0, inverse, result)


def _cdist(a: Any, b: Any, p: float, compute_mode: int | None = None) -> Any:
    """Distances between all rows of two tensors."""
    return _lengths(a.unsqueeze(-2) - b.unsqueeze(-3), p)


def _lengths(rows: Any, p: float) -> Any:
    """Return the norms of rows. PyTorch refuses the greatest number of no rows, and gives some a wrong shape."""
    if any(isinstance(extent, int) and extent == 0 for extent in rows.shape):
        return rows.sum(-1)
    return torch.linalg.vector_norm(rows, p, -1)


def _trilinear(
    a: Any, b: Any, c: Any, expand1: Any, expand2: Any, expand3: Any, sumdim: Any, unroll_dim: int = 1
) -> Any:
    """Multiply three tensors, broadcast along some axes, and add up along others (``bilinear``).

    Sums of small integers have their type, unlike those of ``sum``.
    """
    tensors = []
    for x, axes in ((a, expand1), (b, expand2), (c, expand3)):
        for axis in axes:
            x = x.unsqueeze(axis)
        tensors.append(x)
    product = tensors[0] * tensors[1] * tensors[2]
    return product.sum(sumdim, dtype=product.dtype) if sumdim else product


def _addbmm(addend: Any, left: Any, right: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """Add the sum of products of matrices. With beta 0 the addend does not count, even if it is NaN.

    Factors of integers are integers: PyTorch cuts off their fractions.
    """
    if not left.dtype.is_floating_point:
        beta, alpha = int(beta), int(alpha)
    wide = wide_type(left.dtype)
    total = torch.bmm(left.to(wide), right.to(wide)).sum(0, dtype=wide) * alpha
    return (total if beta == 0 else addend * beta + total).to(left.dtype)


def _pdist(x: Any, p: float = 2.0) -> Any:
    rows, columns = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device).unbind(0)
    return _lengths(x.index_select(0, rows) - x.index_select(0, columns), p)


def _chosen(values: Any, order: Any, at: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    """Return the elements of a sort at a position, with their indices."""
    chosen = values.gather(dim, at), order.gather(dim, at)
    return chosen if keepdim else (chosen[0].squeeze(dim), chosen[1].squeeze(dim))


def _kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, order = torch.sort(x, dim=dim, stable=True)
    at = torch.full_like(order.narrow(dim, 0, 1), k - 1)
    return _chosen(values, order, at, dim, keepdim)


def _median(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the lower one of two middle elements, or NaN if there is one."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, order = torch.sort(x, dim=dim, stable=True)
    at = torch.full_like(order.narrow(dim, 0, 1), (x.shape[dim] - 1) // 2)
    if x.is_floating_point():  # NaN is sorted last
        nans = torch.isnan(x).sum(dim, keepdim=True)
        at = torch.where(nans > 0, x.shape[dim] - nans, at)
    return _chosen(values, order, at, dim, keepdim)


def _nanmedian(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the median of all elements that are numbers."""
    if x.dim() == 0 or not x.is_floating_point():
        return _median(x, dim, keepdim)
    values, order = torch.sort(x, dim=dim, stable=True)
    count = torch.logical_not(torch.isnan(x)).sum(dim, keepdim=True)
    at = torch.clamp(torch.div(count - 1, 2, rounding_mode="floor"), min=0)
    return _chosen(values, order, at, dim, keepdim)


def _mode(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the element that occurs most often, or the least of several such, with its last index."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    if x.numel() == 0 or not isinstance(x.shape[dim], int):
        return NotImplemented
    values, order = torch.sort(x, dim=dim, stable=True)
    shape = [-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())]
    at = torch.arange(x.shape[dim], device=x.device).reshape(shape).expand(x.shape)
    before = torch.cat([values.narrow(dim, 0, 1), values.narrow(dim, 0, x.shape[dim] - 1)], dim)
    begin = torch.cummax(torch.where(values != before, at, 0), dim)[0]
    last = torch.argmax(at - begin, dim, keepdim=True)
    return _chosen(values, order, last, dim, keepdim)
