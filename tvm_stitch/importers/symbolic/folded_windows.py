# SPDX-License-Identifier: Apache-2.0
"""Images of which each element is the sum of the windows' elements at its position: ONNX's ``Col2Im``, PyTorch's fold.

Each element of the image reads the windows that hold it. PyTorch decomposes a fold into a scatter, whose additions
wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import product
from typing import Any

from tvm import te, tirx

WRITTEN_OUT = 16
"""Most elements of a window whose sum is one expression, so that it is part of the kernels around it."""


def window_counts(
    image: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    padding: Sequence[int],
) -> list[int]:  # fmt: skip
    """Return the windows along each axis of an image.

    Args:
        image: the extents of the image.
        kernel: those of a window, and likewise ``strides`` and ``dilations``.
        padding: elements in front of each axis, and then behind each.
    """
    rank = len(kernel)
    return [
        (image[a] + padding[a] + padding[rank + a] - (kernel[a] - 1) * dilations[a] - 1) // strides[a] + 1
        for a in range(rank)
    ]


def folded_windows(
    x: te.Tensor, image: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    padding: Sequence[int],
) -> te.Tensor:  # fmt: skip
    """Return an image of the shape (batch, channels, *image).

    Args:
        x: windows of the shape (batch, channels * elements of a window, windows), row by row.
        image: as for :func:`window_counts`, and so are the others.
    """
    rank, batch, rows = len(kernel), x.shape[0], x.shape[1]
    windows = window_counts(image, kernel, strides, dilations, padding)

    def part(n: Any, c: Any, at: Sequence[Any], taps: Sequence[Any]) -> Any:
        row, column, inside = c, 0, []
        for a in range(rank):
            place = at[a] + padding[a] - taps[a] * dilations[a]
            number = tirx.floordiv(place, strides[a])
            inside += [tirx.floormod(place, strides[a]) == 0] if strides[a] > 1 else []
            inside += [number >= 0, number < windows[a]]
            row, column = row * kernel[a] + taps[a], column * windows[a] + number
        return tirx.if_then_else(tirx.all(*inside), x(n, row, column), tirx.const(0, x.dtype))

    def element(n: Any, c: Any, *at: Any) -> Any:
        if math.prod(kernel) > WRITTEN_OUT:
            over = [te.reduce_axis((0, extent), f"tap{a}") for a, extent in enumerate(kernel)]
            return te.sum(part(n, c, at, over), axis=over)
        return reduce(lambda a, b: a + b, (part(n, c, at, taps) for taps in product(*map(range, kernel))))

    return te.compute((batch, rows // math.prod(kernel), *image), element, name="col2im")
