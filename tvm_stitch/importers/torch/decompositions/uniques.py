# SPDX-License-Identifier: Apache-2.0
"""The different elements or slices of a tensor (``unique``), in PyTorch's core operators.

Sorting puts equal elements next to each other. An element that differs from the one before it begins a run. The size
of the result is the number of runs, which ``nonzero`` counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def unique_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by PyTorch's overloads."""
    return {
        aten._unique2.default: _unique,
        aten.unique_consecutive.default: _unique_consecutive,
        aten.unique_dim.default: _unique_dim,
        aten.unique_dim_consecutive.default: _unique_dim_consecutive,
    }


def _unique(
    x: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Any, Any, Any]:
    flat = x.reshape(-1)
    if x.numel() == 0:
        return flat.clone(), _none(x).reshape(x.shape) if return_inverse else _none(x), _none(x)
    order = torch.sort(flat, stable=True)[1]
    result, inverse, counts = _runs(
        flat[order], _starts(flat[order]), order, inverse=return_inverse, counts=return_counts
    )
    return result, inverse.reshape(x.shape) if return_inverse else inverse, counts


def _unique_dim(
    x: Any, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Any, Any, Any]:
    """Sort slices as words: their first elements count first."""
    if x.numel() == 0:
        return NotImplemented if x.shape[dim] else (x.clone(), _none(x), _none(x))
    rows, back = _rows(x, dim)
    key = _ranks(rows)
    order = torch.sort(key, stable=True)[1]
    result, inverse, counts = _runs(
        rows[order], _starts(key[order]), order, inverse=return_inverse, counts=return_counts
    )
    return back(result), inverse, counts


def _unique_consecutive(
    x: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Any, Any, Any]:
    if dim is not None:
        return _unique_dim_consecutive(x, dim, return_inverse, return_counts)
    if x.numel() == 0:
        return x.reshape(-1).clone(), _none(x).reshape(x.shape) if return_inverse else _none(x), _none(x)
    flat = x.reshape(-1)
    result, inverse, counts = _runs(flat, _starts(flat), None, inverse=return_inverse, counts=return_counts)
    return result, inverse.reshape(x.shape) if return_inverse else inverse, counts


def _unique_dim_consecutive(
    x: Any, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Any, Any, Any]:
    if x.numel() == 0:
        return NotImplemented if x.shape[dim] else (x.clone(), _none(x), _none(x))
    rows, back = _rows(x, dim)
    result, inverse, counts = _runs(rows, _starts(rows), None, inverse=return_inverse, counts=return_counts)
    return back(result), inverse, counts


def _none(x: Any) -> Any:
    """Return no indices."""
    return torch.zeros(0, dtype=torch.int64, device=x.device)


def _rows(x: Any, dim: int) -> tuple[Any, Callable[[Any], Any]]:
    """Return slices along an axis as rows, and a function that makes slices of rows."""
    if x.dim() == 0:
        return x.reshape(1, 1), lambda rows: rows.reshape(-1)
    moved = x.movedim(dim, 0)
    return moved.reshape(moved.shape[0], -1), lambda rows: rows.reshape(-1, *moved.shape[1:]).movedim(0, dim)


def _starts(values: Any) -> Any:
    """Return whether an element or a row differs from the one before it. The first one does."""
    at = torch.arange(values.shape[0], device=values.device)
    differs = values != values[torch.clamp(at - 1, min=0)]
    return torch.logical_or(at == 0, differs if differs.dim() == 1 else differs.any(1))


def _runs(values: Any, starts: Any, order: Any, *, inverse: bool, counts: bool) -> tuple[Any, Any, Any]:
    """Return the first elements or rows of runs, the run of each element, and the lengths of the runs.

    Args:
        values: elements or rows, next to equal ones.
        starts: whether a run begins with the element.
        order: the position of each element in the original tensor, or None if it is the same.
        inverse: whether the runs of elements are wanted.
        counts: whether the lengths are wanted.
    """
    first = torch.nonzero(starts).squeeze(1)
    run = torch.cumsum(starts.to(torch.int64), 0) - 1
    of_element = _none(values)
    if inverse:
        of_element = run if order is None else torch.zeros_like(run).scatter(0, order, run)
    lengths = _none(values)
    if counts:
        lengths = torch.zeros_like(run).scatter_add(0, run, torch.ones_like(run))[run[first]]
    return values[first], of_element, lengths


def _ranks(rows: Any) -> Any:
    """Return a number for each row. Numbers are in the order of the rows, and equal for equal rows.

    The ranks of adjacent columns are joined in pairs, so that k columns take log2(k) sorts.
    """
    count, ranks = rows.shape[0], _dense_ranks(rows)
    while ranks.shape[1] > 1:
        even = ranks.shape[1] // 2 * 2
        joined = _dense_ranks(ranks[:, 0:even:2] * count + ranks[:, 1:even:2])
        ranks = torch.cat([joined, ranks[:, even:]], 1) if even < ranks.shape[1] else joined
    return ranks[:, 0]


def _dense_ranks(columns: Any) -> Any:
    """Return for each element how many different smaller ones its column has."""
    values, order = torch.sort(columns, dim=0, stable=True)
    at = torch.arange(columns.shape[0], device=columns.device)
    differs = values != values[torch.clamp(at - 1, min=0)]
    ranks = torch.cumsum(differs.to(torch.int64), 0)
    return torch.zeros_like(ranks).scatter(0, order, ranks)
