# SPDX-License-Identifier: Apache-2.0
"""Masked writes, scatters that reduce, and bags of embeddings, in PyTorch's core operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def indexing_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by PyTorch's overloads."""
    return {
        aten._embedding_bag.default: _embedding_bag,
        aten._embedding_bag_forward_only.default: _embedding_bag,
        aten.as_strided_copy.default: aten.as_strided.default,
        aten.as_strided_scatter.default: _as_strided_scatter,
        aten.repeat_interleave.Tensor: _repeat_interleave,
        aten.diagonal_scatter.default: _diagonal_scatter,
        aten.embedding_renorm.default: _embedding_renorm,
        aten.index_put.default: _masked_put,
        aten.index_reduce.default: _index_reduce,
        aten.masked_scatter.default: _masked_scatter,
        aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
        aten.put.default: _put,
        aten.searchsorted.Scalar: _searchsorted,
        aten.searchsorted.Tensor: _searchsorted,
        aten.scatter.reduce: _scatter_reduced,
        aten.scatter.value_reduce: _scatter_reduced_value,
    }


def _max_pool_backward(
    gradient: Any,
    x: Any,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Any,
) -> Any:
    """Add each gradient to the pixel that was the maximum of its window."""
    *lead, height, width = x.shape
    zeros = torch.zeros([*lead, height * width], dtype=gradient.dtype, device=x.device)
    return zeros.scatter_add(-1, indices.flatten(-2), gradient.flatten(-2)).reshape(x.shape)


def _as_strided_scatter(
    x: Any, source: Any, size: Any, stride: Any, storage_offset: int | None = None
) -> Any:
    """Write at the positions of a strided view of a contiguous tensor."""
    offset = x.storage_offset() if storage_offset is None else storage_offset
    numbers = (*size, *stride, offset, *x.shape)
    if not x.is_contiguous() or not all(type(each) is int for each in numbers):
        return NotImplemented
    position = torch.full(list(size), offset, dtype=torch.int64, device=x.device)
    for axis, (extent, step) in enumerate(zip(size, stride)):
        shape = [-1 if other == axis else 1 for other in range(len(size))]
        position = position + step * torch.arange(extent, device=x.device).reshape(shape)
    flat = x.reshape(-1).index_put([position.reshape(-1)], source.reshape(-1).to(x.dtype))
    return flat.reshape(x.shape)


def _repeat_interleave(repeats: Any, *, output_size: int | None = None) -> Any:
    """Return each index as often as a number says. Without a size, the sum of the numbers is read at run time."""
    ends = torch.cumsum(repeats.to(torch.int64), 0)
    if output_size is None:
        output_size = 0 if repeats.shape[0] == 0 else ends[-1].item()
        torch._check(output_size >= 0)
    at = torch.arange(output_size, device=repeats.device)
    return torch.searchsorted(ends, at, right=True).to(repeats.dtype)


_REDUCTIONS = {"add": "sum", "multiply": "prod"}


def _scatter_reduced(x: Any, dim: int, index: Any, src: Any, *, reduce: str) -> Any:
    return torch.scatter_reduce(x, dim, index, src, _REDUCTIONS[reduce])


def _scatter_reduced_value(x: Any, dim: int, index: Any, value: Any, *, reduce: str) -> Any:
    source = torch.full(index.shape, value, dtype=x.dtype, device=x.device)
    return torch.scatter_reduce(x, dim, index, source, _REDUCTIONS[reduce])


def _searchsorted(
    sequence: Any,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """Count the smaller elements for sequences of several axes. One sequence is left to the converter."""
    if isinstance(values, (int, float)):
        values = torch.full([], values, dtype=sequence.dtype, device=sequence.device)
    elif sequence.dim() == 1 and sorter is None:
        return NotImplemented
    if sorter is not None:
        sequence = sequence.gather(-1, sorter)
    sequence, values = sequence.unsqueeze(-2), values.unsqueeze(-1)
    if sequence.dim() == 2:  # one sequence for all values
        sequence = sequence.squeeze(0)
    before = sequence <= values if right or side == "right" else sequence < values
    return before.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def _masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """Write the source's elements, in order, where the mask is true."""
    x, mask = torch.broadcast_tensors(x, mask)
    if source.numel() == 0 or x.numel() == 0:
        return x.clone()
    before = torch.cumsum(mask.reshape(-1).to(torch.int64), 0) - 1
    position = torch.clamp(before, 0, source.numel() - 1)
    chosen = torch.index_select(source.reshape(-1), 0, position).reshape(x.shape)
    return torch.where(mask, chosen, x)


def _masked_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """Write values where a mask is true. Other indices are left to the converter."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1 or given[0][1].dtype not in (torch.bool, torch.uint8):
        return NotImplemented
    axis, mask = given[0]
    mask = mask.to(torch.bool)
    behind = x.dim() - axis - mask.dim()
    mask = mask.reshape([*mask.shape, *[1] * behind])
    values = values.to(x.dtype)
    count = values.shape[values.dim() - 1 - behind] if values.dim() > behind else 1
    if isinstance(count, int) and count == 1:  # the same values wherever the mask is true
        front = values.dim() - 1 - behind
        if front >= 0:
            values = values.squeeze(front)
        if front > 0:  # values of the axes in front of the mask
            inner = [1] * (mask.dim() - behind)
            values = values.reshape([*values.shape[:front], *inner, *values.shape[front:]])
        return torch.where(mask, x + values if accumulate else values, x)
    if axis or accumulate:
        return NotImplemented
    if values.dim() <= behind:
        return NotImplemented
    rows = values.reshape([count, -1])
    flat = mask.reshape(-1)
    if x.numel() == 0 or (isinstance(count, int) and count == 0):
        return x.clone()
    before = torch.clamp(torch.cumsum(flat.to(torch.int64), 0) - 1, 0, count - 1)
    chosen = torch.index_select(rows, 0, before)
    return torch.where(mask, chosen.reshape([*x.shape[: x.dim() - behind], *values.shape[1:]]), x)


def _diagonal_scatter(x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Write a diagonal, whose axis is the source's last one."""
    rank = x.dim()
    last = [dim1 % rank, dim2 % rank]
    order = [axis for axis in range(rank) if axis not in last] + last
    at = torch.arange(source.shape[-1], device=x.device)
    indices = [None] * (rank - 2) + [at + max(-offset, 0), at + max(offset, 0)]
    moved = aten.index_put.default(x.permute(order), indices, source)
    return moved.permute([order.index(axis) for axis in range(rank)]).clone()


def _index_reduce(
    x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """Reduce slices of the source into those of the input at an index."""
    shape = [-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())]
    spread = index.to(torch.int64).reshape(shape).expand(source.shape)
    return torch.scatter_reduce(x, dim, spread, source, reduce, include_self=include_self)


def _put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """Write at positions of the flattened tensor."""
    flat = x.reshape(-1)
    return flat.index_put([index.reshape(-1)], source.reshape(-1), accumulate).reshape(x.shape)


def _embedding_renorm(weight: Any, indices: Any, max_norm: float, norm_type: float) -> Any:
    """Scale rows down to a norm, of those that indices read."""
    read = torch.zeros_like(weight[:, 0], dtype=torch.bool)
    read = read.index_put([indices.reshape(-1)], torch.ones([], dtype=torch.bool, device=weight.device))
    norm = torch.linalg.vector_norm(weight, norm_type, 1)
    factor = torch.where(torch.logical_and(read, norm > max_norm), max_norm / (norm + 1e-7), 1.0)
    return weight * factor.to(weight.dtype).unsqueeze(1)


def _embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """Sums, means (mode 1) or maxima (mode 2) of rows, for bags that begin at offsets."""
    count = offsets.shape[0] - int(include_last_offset)
    begins = offsets[:count].to(torch.int64)
    at = torch.arange(indices.shape[0], device=indices.device)
    bag = torch.searchsorted(begins, at, right=True) - 1
    kept = indices != padding_idx if padding_idx >= 0 else torch.ones_like(indices, dtype=torch.bool)
    if include_last_offset:
        kept = torch.logical_and(kept, at < offsets[count])
    index = torch.where(kept, indices, 0)
    wide = weight.float() if weight.dtype in (torch.float16, torch.bfloat16) else weight
    rows = torch.index_select(wide, 0, index)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.to(rows.dtype).unsqueeze(1)
    sizes = torch.zeros_like(begins).index_add(0, bag, kept.to(torch.int64))
    shape = [count, weight.shape[1]]
    if mode == 2:
        rows = torch.where(kept.unsqueeze(1), rows, -torch.inf)
        lowest = torch.full(shape, -torch.inf, dtype=rows.dtype, device=rows.device)
        spread = bag.unsqueeze(1).expand(rows.shape)
        result = torch.scatter_reduce(lowest, 0, spread, rows, "amax")
        result = torch.where(sizes.unsqueeze(1) == 0, 0.0, result)
    else:
        rows = torch.where(kept.unsqueeze(1), rows, 0.0)
        result = torch.zeros(shape, dtype=rows.dtype, device=rows.device).index_add(0, bag, rows)
        if mode == 1:
            result = result / torch.clamp(sizes, min=1).unsqueeze(1)
    return result.to(weight.dtype), bag, sizes, torch.zeros_like(sizes)
