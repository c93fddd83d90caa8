# SPDX-License-Identifier: Apache-2.0
"""Volumes sampled at points of a grid, and bicubic resizing, in PyTorch's core operators."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch._C import DispatchKey
from torch._decomp import decomposition_table

from .halves import wide_type

aten = torch.ops.aten

ZEROS, BORDER, REFLECTION = 0, 1, 2
"""PyTorch's numbers of paddings."""
NEAREST = 1
"""PyTorch's number of the interpolation that takes the nearest point. The other one is trilinear."""


RESIZED = (
    aten.upsample_nearest1d.vec,
    aten.upsample_nearest3d.vec,
    aten._upsample_nearest_exact1d.vec,
    aten._upsample_nearest_exact2d.vec,
    aten._upsample_nearest_exact3d.vec,
    aten.upsample_linear1d.vec,
    aten.upsample_trilinear3d.vec,
)
"""Further operators that resize, with the size or the factors of the axes."""


def image_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by PyTorch's overloads."""
    return {
        aten.grid_sampler_3d.default: _grid_sampler_3d,
        aten.upsample_bicubic2d.default: _of_floats(decomposition_table[aten.upsample_bicubic2d.default]),
        aten.upsample_bicubic2d.vec: _of_floats(_of_numbers(aten.upsample_bicubic2d.vec)),
        **{overload: _of_numbers(overload) for overload in RESIZED},
    }


def _of_floats(known: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decomposition for floats. Bytes are left to a converter: it rounds them otherwise."""

    def decomposed(x: Any, *args: Any, **kwargs: Any) -> Any:
        return NotImplemented if x.dtype == torch.uint8 else known(x, *args, **kwargs)

    return decomposed


def _of_numbers(overload: Any) -> Callable[..., Any]:
    """Return PyTorch's decomposition for images of known sizes. Symbolic ones are left to a converter.

    PyTorch computes positions from the quotient of both sizes, which is a number of the graph if they are symbolic.
    """
    # While a program is decomposed, the overload's own decomposition is the one that this function returns.
    known = decomposition_table.get(overload) or overload.py_kernels[DispatchKey.CompositeImplicitAutograd]

    def decomposed(x: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
        extents = [*x.shape[2:], *(size or ())]
        return known(x, size, *args, **kwargs) if all(type(e) is int for e in extents) else NotImplemented

    return decomposed


def _grid_sampler_3d(x: Any, grid: Any, interpolation: int, padding: int, aligned: bool) -> Any:
    """Sample volumes ``[N, C, D, H, W]`` at points ``[N, P, Q, R, 3]``, whose last axis has the column first.

    Half types are computed in float32.
    """
    extents = list(x.shape[2:])
    if not all(type(extent) is int for extent in extents):
        return NotImplemented
    wide = wide_type(x.dtype)
    points = [
        _coordinate(grid[..., 2 - axis].to(wide), extent, padding, aligned)
        for axis, extent in enumerate(extents)
    ]
    flat = x.to(wide).flatten(2)
    result: Any = None
    taps = [(0, 0, 0)] if interpolation == NEAREST else product((0, 1), repeat=3)
    below = [torch.round(p) if interpolation == NEAREST else torch.floor(p) for p in points]
    for tap in taps:
        index: Any = 0
        inside: Any = True
        weight: Any = 1
        for extent, point, first, step in zip(extents, points, below, tap):
            at = first + step
            here = torch.logical_and(at >= 0, at <= extent - 1)  # a NaN is not
            inside = torch.logical_and(inside, here) if inside is not True else here
            index = index * extent + torch.where(here, at, 0.0).to(torch.int64)
            if interpolation != NEAREST:
                weight = weight * (point - first if step else first + 1 - point)
        places = index.flatten(1).unsqueeze(1).expand(*flat.shape[:2], -1)
        values = flat.gather(2, places).reshape([*x.shape[:2], *grid.shape[1:4]])
        values = values if interpolation == NEAREST else values * weight.unsqueeze(1)
        values = torch.where(inside.unsqueeze(1), values, 0.0)
        result = values if result is None else result + values
    return result.to(x.dtype)


def _coordinate(point: Any, extent: int, padding: int, aligned: bool) -> Any:
    """Return points between -1 and 1 as positions along an axis, moved inside of the volume by the padding."""
    at = (point + 1) * ((extent - 1) / 2) if aligned else ((point + 1) * extent - 1) / 2
    if padding == ZEROS:
        return at
    if padding == REFLECTION:
        low, span = (0.0, extent - 1.0) if aligned else (-0.5, float(extent))
        at = _reflected(at, low, span) if span else torch.zeros_like(at)
    return torch.where(torch.isnan(at), extent - 1, torch.clamp(at, 0, extent - 1))  # as C++ limits a NaN


def _reflected(at: Any, low: float, span: float) -> Any:
    """Return positions reflected at both ends of a range."""
    distance = (at - low).abs()
    rest, turns = torch.fmod(distance, span), torch.floor(distance / span)
    even = torch.fmod(turns, 2.0) == 0
    return torch.where(even, rest + low, span - rest + low)
