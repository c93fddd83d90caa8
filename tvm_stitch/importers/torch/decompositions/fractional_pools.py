# SPDX-License-Identifier: Apache-2.0
"""Fractional maximum pools in PyTorch's core operators: windows begin at positions that given numbers choose."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def fractional_pool_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by PyTorch's overloads."""
    return {
        aten.fractional_max_pool2d.default: lambda x, kernel, output, samples: _pool(
            x, kernel, output, samples, 2
        ),
        aten.fractional_max_pool3d.default: lambda x, kernel, output, samples: _pool(
            x, kernel, output, samples, 3
        ),
    }


def _pool(x: Any, kernel: Sequence[int], output: Sequence[int], samples: Any, rank: int) -> Any:
    """Return the maxima of windows, and their positions in a channel."""
    extents = list(x.shape[-rank:])
    if not all(type(extent) is int for extent in extents):
        return NotImplemented
    lead = list(x.shape[:-rank])
    batched = x.reshape([*(lead if len(lead) > 1 else [1, *lead]), *extents])
    position: Any = 0
    for axis, (extent, size, count) in enumerate(zip(extents, kernel, output)):
        # PyTorch's samples of two axes are those of the columns first.
        sample = samples[:, :, axis if rank == 3 else 1 - axis]
        first = _begins(sample, extent, size, count)
        at = first.unsqueeze(-1) + torch.arange(size, device=x.device)  # <N, C, count, size>
        shape = [*at.shape[:2], *[1] * (2 * rank)]
        shape[2 + axis], shape[2 + rank + axis] = count, size
        position = position * extent + at.reshape(shape)
    taps = position.reshape([*batched.shape[:2], *output, math.prod(kernel)])
    values = batched.flatten(2).gather(2, taps.flatten(2)).reshape(taps.shape)
    if x.is_floating_point():
        best = torch.argmax(torch.where(torch.isnan(values), torch.inf, values), -1, keepdim=True)
        nans = torch.isnan(values)
        last = taps.shape[-1] - 1 - torch.argmax(nans.flip(-1).to(torch.int8), -1, keepdim=True)
        best = torch.where(nans.any(-1, keepdim=True), last, best)  # the last NaN is the maximum
    else:
        best = torch.argmax(values, -1, keepdim=True)
    found = [each.gather(-1, best).squeeze(-1).reshape([*lead, *output]) for each in (values, taps)]
    return found[0], found[1]


def _begins(sample: Any, extent: int, size: int, count: int) -> Any:
    """Return the first elements of the windows along an axis ``[N, C, count]``, for samples ``[N, C]``."""
    last = torch.full_like(sample, extent - size).to(torch.int64).unsqueeze(-1)
    if count == 1:
        return last
    step = (extent - size) / (count - 1)
    at = torch.arange(count - 1, device=sample.device).to(sample.dtype)
    sample = sample.unsqueeze(-1)
    begins = ((at + sample) * step).to(torch.int64) - (sample * step).to(torch.int64)
    return torch.cat([begins, last], -1)
