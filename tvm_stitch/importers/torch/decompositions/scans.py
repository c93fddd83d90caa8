# SPDX-License-Identifier: Apache-2.0
"""Running maxima and logarithms of running sums, in PyTorch's core operators.

A scan doubles the reach of each element in every step, so that an axis of n elements takes log2(n) steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

aten = torch.ops.aten


def scan_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by PyTorch's overloads."""
    return {
        aten.cummax.default: partial(_extremes, torch.ge),
        aten.cummin.default: partial(_extremes, torch.le),
        aten.logcumsumexp.default: _logcumsumexp,
    }


def scanned(
    combine: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]], values: Sequence[Any], dim: int
) -> list[Any]:
    """Return an inclusive scan of tensors along an axis of a known size.

    Args:
        combine: combines the values of earlier elements with those of later ones. It is associative.
        values: tensors of one shape.
        dim: the axis.
    """
    size = values[0].shape[dim]
    values, reach = list(values), 1
    while reach < size:
        earlier = [x.narrow(dim, 0, size - reach) for x in values]
        later = [x.narrow(dim, reach, size - reach) for x in values]
        heads = [x.narrow(dim, 0, reach) for x in values]
        both = combine(earlier, later)
        values = [torch.cat([head, x], dim) for head, x in zip(heads, both)]
        reach *= 2
    return values


def _is_known(x: Any, dim: int) -> bool:
    return isinstance(x.shape[dim], int)


def _extremes(beats: Callable[[Any, Any], Any], x: Any, dim: int) -> Any:
    """Running extremes with their indices. Of equal elements the last one counts, and NaN beats all."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    if not _is_known(x, dim):
        return NotImplemented
    shape = [-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())]
    index = torch.arange(x.shape[dim], device=x.device).reshape(shape).expand(x.shape)

    def combine(earlier: Sequence[Any], later: Sequence[Any]) -> list[Any]:
        takes = beats(later[0], earlier[0])
        if x.is_floating_point():
            takes = torch.logical_or(takes, torch.isnan(later[0]))
        return [torch.where(takes, b, a) for a, b in zip(earlier, later)]

    values, index = scanned(combine, [x, index], dim)
    return values.clone(), index.clone()


def _logcumsumexp(x: Any, dim: int) -> Any:
    if x.dim() == 0:
        return x.clone()
    if not _is_known(x, dim) or x.is_complex():
        return NotImplemented
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    (result,) = scanned(lambda a, b: [torch.logaddexp(a[0], b[0])], [wide], dim)
    return result.to(x.dtype).clone()
