# SPDX-License-Identifier: Apache-2.0
"""Residue classes of outputs: a window over dilated data becomes windows over the data itself.

A transposed convolution of stride ``s`` is a convolution of stride 1 over data with ``s - 1`` zeros between
elements. Each output meets some elements of the data and many zeros. The position of the output modulo ``s``
determines which elements of the window meet data. So each axis has ``s`` residue classes, and every class is a
convolution that multiplies by no zero.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from ...support.failures import Refusal
from .padding import Padded


@dataclass(frozen=True)
class Window:
    """One spatial axis of a convolution: its output positions, and its window.

    Attributes:
        outputs, stride: number of output positions, and their distance in the data.
        kernel, dilation: number of window elements, and their distance in the data.
    """

    outputs: int
    kernel: int
    stride: int
    dilation: int

    def span(self, outputs: int | None = None) -> int:
        """Return the number of data elements that all positions, or ``outputs`` neighbouring ones, read."""
        count = self.outputs if outputs is None else outputs
        return (count - 1) * self.stride + (self.kernel - 1) * self.dilation + 1


@dataclass(frozen=True)
class Taps:
    """The output positions along one spatial axis that read the same elements of the window.

    Attributes:
        first, step, outputs: the positions are ``first + step * y``, for ``outputs`` values of ``y``.
        kernel, dilation: number of window elements that they read, and their distance in the data.
        offset: position of the first of these elements in the data, relative to ``y``.
        weights: the indices of the elements in the window.
    """

    first: int
    step: int
    outputs: int
    kernel: int
    dilation: int
    offset: int
    weights: range

    @property
    def end(self) -> int:
        """The position behind the last element that is read, relative to ``y``."""
        return self.offset + (self.kernel - 1) * self.dilation + 1


Residue = tuple[Taps, ...]
"""A residue class: the taps of each spatial axis."""


@dataclass(frozen=True)
class Residues:
    """The residue classes of a convolution over dilated data.

    Attributes:
        lengths: extents of the result's spatial axes.
        kernel: window elements along each axis.
        each: the classes, in the order in which weights are packed.
    """

    lengths: tuple[int, ...]
    kernel: tuple[int, ...]
    each: tuple[Residue, ...]

    @property
    def are_equal(self) -> bool:
        """True if all classes have equally many positions along each axis."""
        return len({tuple(taps.outputs for taps in residue) for residue in self.each}) == 1


def whole(windows: tuple[Window, ...]) -> Residues:
    """Return the only residue class of a convolution over data that is not dilated."""
    one = tuple(Taps(0, 1, w.outputs, w.kernel, w.dilation, 0, range(w.kernel)) for w in windows)
    return Residues(tuple(w.outputs for w in windows), tuple(w.kernel for w in windows), (one,))


def residues_of(data: Padded, windows: tuple[Window, ...]) -> tuple[Padded, tuple[Window, ...], Residues]:
    """Return the data before dilation, windows over it that cover those of every residue class, and the classes.

    Args:
        data: dilated along its spatial axes, which are all axes but the first and the last.
        windows: over the dilated data, of stride 1.

    Raises:
        Refusal: if windows have strides, or meet no data at all.
    """
    if any(w.stride != 1 for w in windows):
        raise Refusal("its windows have strides over dilated data")
    shape, before = list(data.shape), list(data.before)
    along, common = [], []
    for axis, window in enumerate(windows, 1):
        taps, lowest = _taps(window, data.spacing[axis], data.before[axis])
        along.append(taps)
        outputs = max((t.outputs for t in taps), default=0)
        common.append(Window(outputs, max((t.end for t in taps if t.kernel), default=1), 1, 1))
        shape[axis], before[axis] = common[-1].span(), -lowest
    residues = tuple(itertools.product(*along))
    if not any(all(t.kernel for t in residue) for residue in residues):
        raise Refusal("its windows meet no data")
    fill = data.fill if any(before) or tuple(shape) != data.inner else None
    undilated = replace(data, shape=tuple(shape), before=tuple(before), fill=fill, spacing=())
    lengths = tuple(w.outputs for w in windows)
    return undilated, tuple(common), Residues(lengths, tuple(w.kernel for w in windows), residues)


def _taps(window: Window, spacing: int, before: int) -> tuple[list[Taps], int]:
    """Return the taps of an axis, one for each residue, and the origin of their offsets.

    For output ``o`` and window element ``u``, the position in the dilated data is ``o + u * dilation - before``. An
    element of the data lies there if ``spacing`` divides that position.
    """
    common = math.gcd(window.dilation, spacing)
    step, dilation = spacing // common, window.dilation // common
    taps = []
    for first in range(min(spacing, window.outputs)):
        outputs = -(-(window.outputs - first) // spacing)
        start = next(
            (u for u in range(step) if (first + u * window.dilation - before) % spacing == 0), window.kernel
        )
        weights = range(start, window.kernel, step)
        offset = (first + start * window.dilation - before) // spacing
        taps.append(Taps(first, spacing, outputs, len(weights), dilation, offset if weights else 0, weights))
    lowest = min((t.offset for t in taps if t.kernel), default=0)
    return [replace(t, offset=t.offset - lowest) if t.kernel else t for t in taps], lowest
