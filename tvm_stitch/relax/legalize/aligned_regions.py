# SPDX-License-Identifier: Apache-2.0
"""Pooling of regions by bilinear samples (RoiAlign): the tensor expression for importers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

MOST_SAMPLES = 4096
"""Samples along a side of a bin, so that regions that are not finite end."""


@dataclass(frozen=True)
class Bins:
    """A division of regions into bins.

    Args:
        counts: bins in a column and in a row.
        samples: samples along each side of a bin. Without a positive number, a bin has as many as pixels.
        scale: the factor from the coordinates of regions to pixels.
        half: whether the centres of pixels are half a pixel away from their corner.
        greatest: take the greatest weighted corner of all samples, as ONNX Runtime does, and not the mean.
    """

    counts: tuple[int, int]
    samples: int
    scale: float
    half: bool
    greatest: bool = False


def aligned_regions(how: Bins) -> Callable[[te.Tensor, te.Tensor, te.Tensor], te.Tensor]:
    """Return :func:`pooled_regions` with given bins, for ``BlockBuilder.call_te``."""

    def roi_align(x: te.Tensor, rois: te.Tensor, batches: te.Tensor) -> te.Tensor:
        return pooled_regions(x, rois, batches, how)

    return roi_align


def pooled_regions(x: te.Tensor, rois: te.Tensor, batches: te.Tensor, how: Bins) -> te.Tensor:
    """Return the means, or the greatest values, of bilinear samples in each bin of each region.

    A kernel computes the number of samples of each region, if it is not fixed.

    Args:
        x: images ``[N, C, H, W]`` of floats.
        rois: regions ``[K, 4]``, two corners each, column first.
        batches: the number of each region's image ``[K]``.
        how: bins and samples.

    Returns:
        ``[K, C, rows of bins, columns of bins]``.
    """
    dtype, bins, ratio = x.dtype, how.counts, how.samples
    regions, (_, channels, *sizes) = rois.shape[0], x.shape
    offset, one, nothing = (tirx.const(v, dtype) for v in (0.5 if how.half else 0.0, 1.0, 0.0))

    def box(r: Any, side: int) -> tuple[Any, Any]:
        start = rois(r, 1 - side) * tirx.const(how.scale, dtype) - offset
        end = rois(r, 3 - side) * tirx.const(how.scale, dtype) - offset
        size = end - start
        return start, size if how.half else tirx.max(size, one)

    def samples(r: Any, side: int) -> Any:
        """Return the samples along a side of a bin: as many as pixels, if their number is not fixed."""
        if ratio > 0:
            return tirx.const(ratio, "int64")
        pixels = tirx.ceil(box(r, side)[1] / tirx.const(bins[side], dtype))
        most = tirx.const(MOST_SAMPLES, dtype)
        return tirx.Cast("int64", tirx.max(tirx.min(pixels, most), nothing))

    def axes(r: Any) -> list[Any]:
        return [te.reduce_axis((0, samples(r, side)), name) for side, name in ((0, "i"), (1, "j"))]

    def sample(of: Any, r: Any, c: Any, p: Any, q: Any, i: Any, j: Any) -> Any:
        spots = []
        for side, at, tap in ((0, p, i), (1, q, j)):
            start, size = box(r, side)
            step = size / tirx.const(bins[side], dtype)
            spots.append(
                start
                + tirx.Cast(dtype, at) * step
                + (tirx.Cast(dtype, tap) + tirx.const(0.5, dtype)) * step / tirx.Cast(dtype, samples(r, side))
            )
        inside = tirx.all(
            *[tirx.all(spot >= -1.0, spot <= tirx.Cast(dtype, e)) for spot, e in zip(spots, sizes)]
        )
        sides = []
        for spot, extent in zip(spots, sizes):
            # The expressions of a spot are long, and compile as often as they are repeated.
            end = tirx.Cast("int64", extent) - tirx.const(1, "int64")
            spot = tirx.min(tirx.max(spot, nothing), tirx.Cast(dtype, end))
            below = tirx.floor(spot)
            low = tirx.Cast("int64", below)
            sides.append((low, tirx.min(low + 1, end), spot - below))
        (y0, y1, dy), (x0, x1, dx) = sides
        b = tirx.Cast("int64", batches(r))
        corners = [
            (one - dy) * (one - dx) * x(b, c, y0, x0),
            (one - dy) * dx * x(b, c, y0, x1),
            dy * (one - dx) * x(b, c, y1, x0),
            dy * dx * x(b, c, y1, x1),
        ]
        return tirx.if_then_else(inside, of(corners), nothing)

    def pooled(reduce: Any, of: Any, name: str) -> te.Tensor:
        def over(r: Any, c: Any, p: Any, q: Any) -> Any:
            at = axes(r)
            return reduce(sample(of, r, c, p, q, *at), axis=at)

        return te.compute((regions, channels, *bins), over, name=name)

    def counted(r: Any) -> Any:
        return samples(r, 0) * samples(r, 1)

    if how.greatest:
        greatest = pooled(te.max, _greatest, "roi_max")
        if ratio > 0:
            return greatest
        return te.compute(
            greatest.shape,
            lambda r, *k: tirx.Select(counted(r) > 0, greatest(r, *k), nothing),
            name="roi_align_max",
        )
    total = pooled(te.sum, sum, "roi_sum")
    one_or_more = tirx.const(1, "int64")
    return te.compute(
        total.shape,
        lambda r, *k: total(r, *k) / tirx.Cast(dtype, tirx.max(counted(r), one_or_more)),
        name="roi_align",
    )


def _greatest(values: list[Any]) -> Any:
    result = values[0]
    for each in values[1:]:
        result = tirx.max(result, each)
    return result
