# SPDX-License-Identifier: Apache-2.0
"""torchvision's pooling of regions (``roi_align``), in PyTorch's core operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def region_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by overloads of torchvision, if that package is loaded."""
    try:
        operator = torch.ops.torchvision.roi_align.default
    except (AttributeError, RuntimeError):
        return {}
    return {operator: roi_align}


def roi_align(
    images: Any,
    regions: Any,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Any:
    """Return the mean of bilinear samples in each cell of each region.

    Args:
        images: <N, C, H, W>.
        regions: <K, 5>, the number of the image and two corners (x, y) in its coordinates.
        spatial_scale: factor from these coordinates to pixels.
        pooled_height: number of cells in a column.
        pooled_width: number of cells in a row.
        sampling_ratio: samples of a cell in each direction. Without a positive number the operator is not decomposed.
        aligned: whether pixels are half a pixel away from their corner.
    """
    if sampling_ratio <= 0:
        return NotImplemented
    dtype = images.dtype
    wide = images.float() if dtype in (torch.float16, torch.bfloat16) else images
    boxes = regions[:, 1:].to(wide.dtype) * spatial_scale - (0.5 if aligned else 0.0)
    rows = _samples(boxes[:, 1], boxes[:, 3], pooled_height, sampling_ratio, aligned)
    columns = _samples(boxes[:, 0], boxes[:, 2], pooled_width, sampling_ratio, aligned)
    image = regions[:, 0].to(torch.int64)[:, None, None]
    pixels = wide.permute(0, 2, 3, 1)
    total = None
    for y, row_share in _neighbours(rows, wide.shape[2]):
        for x, column_share in _neighbours(columns, wide.shape[3]):
            share = row_share[:, :, None] * column_share[:, None, :]
            part = pixels[image, y[:, :, None], x[:, None, :]] * share[..., None]
            total = part if total is None else total + part
    assert total is not None
    cells = [regions.shape[0], pooled_height, sampling_ratio, pooled_width, sampling_ratio, images.shape[1]]
    return total.reshape(cells).mean((2, 4)).permute(0, 3, 1, 2).to(dtype)


def _samples(begin: Any, end: Any, cells: int, ratio: int, aligned: bool) -> Any:
    """Return the coordinates of samples along an axis, <K, cells * ratio>."""
    length = end - begin if aligned else torch.clamp(end - begin, min=1.0)
    steps = (torch.arange(cells * ratio, device=begin.device) + 0.5) / (cells * ratio)
    return begin[:, None] + length[:, None] * steps.to(begin.dtype)


def _neighbours(at: Any, extent: int) -> list[tuple[Any, Any]]:
    """Return the pixels on both sides of coordinates with their shares, which are 0 outside the image."""
    inside = torch.logical_and(at >= -1.0, at <= extent).to(at.dtype)
    at = torch.clamp(at, 0.0, extent - 1)
    below = torch.floor(at)
    share = at - below
    first = below.to(torch.int64)
    second = torch.clamp(first + 1, max=extent - 1)
    return [(first, (1.0 - share) * inside), (second, share * inside)]
