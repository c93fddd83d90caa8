# SPDX-License-Identifier: Apache-2.0
"""Histograms, reductions of segments, positions of elements and hashes, in PyTorch's core operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def count_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by PyTorch's overloads."""
    return {
        aten._histogramdd_bin_edges.default: _histogramdd_edges,
        aten._histogramdd_from_bin_cts.default: _histogramdd_of_counts,
        aten._histogramdd_from_bin_tensors.default: _histogramdd,
        aten.bincount.default: _bincount,
        aten.hash_tensor.default: _hash,
        aten.histc.default: _histc,
        aten.histogram.bin_ct: _histogram_of_count,
        aten.histogram.bins_tensor: _histogram,
        aten.nonzero_static.default: _nonzero_static,
        aten.segment_reduce.default: _segment_reduce,
    }


def _bin(x: Any, edges: Any) -> tuple[Any, Any]:
    """Return the bin of each number, and whether it lies in any. The last bin has both of its edges."""
    at = torch.searchsorted(edges, x.contiguous(), right=True) - 1
    last = edges.shape[0] - 2
    inside = torch.logical_and(x >= edges[0], x <= edges[-1])
    return torch.clamp(at, 0, last), inside


def _counted(at: Any, inside: Any, weight: Any, count: int, dtype: torch.dtype) -> Any:
    """Add up weights, or ones, by bins."""
    ones = torch.ones_like(at, dtype=dtype) if weight is None else weight.reshape(-1)
    return torch.zeros(count, dtype=dtype, device=at.device).index_add(0, at, torch.where(inside, ones, 0))


def _histogram(x: Any, bins: Any, *, weight: Any = None, density: bool = False) -> Any:
    at, inside = _bin(x.reshape(-1), bins)
    result = _counted(at, inside, weight, bins.shape[0] - 1, x.dtype)
    if density:
        result = result / result.sum() / (bins[1:] - bins[:-1])
    return result, bins.clone()


def _bounds(x: Any, given: Sequence[float] | None, margin: float) -> tuple[Any, Any]:
    """Return bounds of a histogram: those given, or those of the data, or 0 and 1 without data.

    Bounds of one number are moved apart by a margin on both sides.
    """
    if given is None and x.numel():
        low, high = x.min(), x.max()
    else:
        low, high = (torch.full([], each, dtype=x.dtype, device=x.device) for each in given or (0.0, 1.0))
    one = low == high
    return torch.where(one, low - margin, low), torch.where(one, high + margin, high)


def _edges(low: Any, high: Any, count: int, dtype: torch.dtype) -> Any:
    """Return evenly spaced edges. As in ``linspace``, the upper half is counted from the end."""
    step = (high - low) / count
    at = torch.arange(count + 1, dtype=dtype, device=low.device)
    return torch.where(at < (count + 1) // 2, low + step * at, high - step * (count - at))


def _histogram_of_count(
    x: Any,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Any = None,
    density: bool = False,
) -> Any:
    low, high = _bounds(x, range, 0.5)
    return _histogram(x, _edges(low, high, bins, x.dtype), weight=weight, density=density)


def _histogramdd_edges(
    x: Any,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Any = None,
    density: bool = False,
) -> Any:
    """Return evenly spaced edges for each column. ``range`` has two numbers for each."""
    columns = x.reshape(-1, x.shape[-1]).unbind(1)
    bounds = [None if range is None else range[2 * at : 2 * at + 2] for at, _ in enumerate(columns)]
    return [
        _edges(*_bounds(column, given, 0.5), count, x.dtype)
        for column, given, count in zip(columns, bounds, bins)
    ]


def _histogramdd_of_counts(
    x: Any,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Any = None,
    density: bool = False,
) -> Any:
    return _histogramdd(x, _histogramdd_edges(x, bins, range=range), weight=weight, density=density)


def _bincount(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    """Count the numbers from 0 to the greatest one, which is read at run time."""
    if x.shape[0] == 0:
        return torch.zeros(minlength, dtype=torch.int64, device=x.device)
    dtype = torch.int64
    if weights is not None:
        dtype = torch.float32 if weights.dtype == torch.float32 else torch.float64
    index = x.to(torch.int64)
    size = torch.clamp(index.max() + 1, min=minlength).item()
    torch._check(size >= 0)
    added = torch.ones_like(index) if weights is None else weights.to(dtype)
    return torch.zeros(size, dtype=dtype, device=x.device).index_add(0, index, added)


def _histogramdd(x: Any, bins: Sequence[Any], *, weight: Any = None, density: bool = False) -> Any:
    """Count the rows of a tensor by the bins of all their elements."""
    rows = x.reshape(-1, x.shape[-1])
    found = [_bin(column, edges) for column, edges in zip(rows.unbind(1), bins)]
    counts = [edges.shape[0] - 1 for edges in bins]
    at, inside = found[0]
    for (other, also), count in zip(found[1:], counts[1:]):
        at, inside = at * count + other, torch.logical_and(inside, also)
    result = _counted(at, inside, weight, math.prod(counts), x.dtype).reshape(counts)
    if density:
        result = result / result.sum()
        for axis, edges in enumerate(bins):
            shape = [-1 if other == axis else 1 for other in range(len(counts))]
            result = result / (edges[1:] - edges[:-1]).reshape(shape)
    return result


def _histc(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Count by evenly spaced bins between the least and the greatest number.

    A bin is computed from the distance to the lower bound. Given bounds are left to the converter.
    """
    if not x.is_floating_point() or min != max:
        return NotImplemented
    flat = x.reshape(-1)
    low, high = _bounds(flat, None, 1.0)
    at = ((flat - low) * bins / (high - low)).to(torch.int64)
    inside = torch.logical_and(flat >= low, flat <= high)
    return _counted(torch.clamp(at, 0, bins - 1), inside, None, bins, x.dtype)


def _nonzero_static(x: Any, *, size: int, fill_value: int = -1) -> Any:
    """Return the positions of the first elements that are not zero, one row for each."""
    if x.numel() == 0 or size == 0 or x.dim() == 0:
        return x.new_full([size, x.dim()], fill_value, dtype=torch.int64)
    flat = (x != 0).reshape(-1)
    before = torch.cumsum(flat.to(torch.int64), 0) - 1
    slot = torch.where(torch.logical_and(flat, before < size), before, size)
    numbers = torch.arange(x.numel(), device=x.device)
    empty = torch.full([size + 1], -1, dtype=torch.int64, device=x.device)
    found = empty.scatter(0, slot, numbers)[:size]
    columns = []
    stride = x.numel()
    for extent in x.shape:
        stride //= extent
        place = torch.div(found, stride, rounding_mode="floor") % extent
        columns.append(torch.where(found < 0, fill_value, place))
    return torch.stack(columns, 1)


_IDENTITIES = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}


def _segment_reduce(
    data: Any,
    reduce: str,
    *,
    lengths: Any = None,
    indices: Any = None,
    offsets: Any = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Any:
    """Reduce consecutive elements of an axis. Each segment is read through a mask of all elements."""
    if (lengths is None) == (offsets is None) or indices is not None:
        return NotImplemented
    if lengths is not None:
        ends = torch.cumsum(lengths, -1)
        begins = ends - lengths
    else:
        begins, ends = (
            offsets.narrow(-1, 0, offsets.shape[-1] - 1),
            offsets.narrow(-1, 1, offsets.shape[-1] - 1),
        )
    at = torch.arange(data.shape[axis], device=data.device)
    mask = torch.logical_and(at >= begins.unsqueeze(-1), at < ends.unsqueeze(-1))  # (..., segment, element)
    mask = mask.reshape([*mask.shape, *[1] * (data.dim() - axis - 1)])
    start = _IDENTITIES[reduce] if initial is None else float(initial)
    chosen = torch.where(mask, data.unsqueeze(axis), _IDENTITIES[reduce])
    dim = axis + 1
    if reduce in ("max", "min"):
        result = (torch.amax if reduce == "max" else torch.amin)(chosen, dim)
        bound = torch.full_like(result, start)
        return (torch.maximum if reduce == "max" else torch.minimum)(result, bound)
    if reduce == "prod":
        return chosen.prod(dim) * start
    total = chosen.sum(dim) + start
    if reduce == "sum":
        return total
    sizes = (ends - begins).reshape([*begins.shape, *[1] * (data.dim() - axis - 1)])
    empty = math.nan if initial is None else start
    return torch.where(sizes == 0, empty, total / sizes.to(total.dtype))


def _hash(x: Any, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0) -> Any:
    """Return the exclusive or of integers, or of the bits of floats in float64, as unsigned numbers."""
    words = x.to(torch.float64).view(torch.int64) if x.is_floating_point() else x.to(torch.int64)
    axes = sorted(axis % x.dim() for axis in dim or range(x.dim())) if x.dim() else []
    kept = [axis for axis in range(x.dim()) if axis not in axes]
    words = words.permute(kept + axes).reshape([*(x.shape[axis] for axis in kept), -1])
    while words.shape[-1] > 1:
        half = words.shape[-1] // 2
        first, second, rest = words.split([half, half, words.shape[-1] % 2], -1)
        words = torch.cat([first ^ second, rest], -1)
    words = words.sum(-1)  # of one word, or of none
    shape = [1 if axis in axes else x.shape[axis] for axis in range(x.dim())]
    return (words.reshape(shape) if keepdim else words).view(torch.uint64)
