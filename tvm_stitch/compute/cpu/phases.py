# SPDX-License-Identifier: Apache-2.0
"""Phases: a window over data that is spread out, as windows over the data itself.

A transposed convolution of stride ``s`` is one of stride 1 over data between whose elements there are ``s - 1`` zeros.
Of such a window every result meets some elements of the data and many zeros, and which elements of the window meet data
depends on the result's place modulo ``s`` alone. So it is ``s`` convolutions along each axis, its phases, none of which
multiplies by a zero.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from ...support.failures import Refusal
from .padding import Padded


@dataclass(frozen=True)
class Window:
    """One spatial axis: the places of a window, and its elements.

    Attributes:
        outputs, stride: places, and how far apart they are.
        kernel, dilation: elements, and how far apart they are.
    """

    outputs: int
    kernel: int
    stride: int
    dilation: int

    def span(self, outputs: int | None = None) -> int:
        """Elements of the data that all places see, or some neighbouring ones."""
        count = self.outputs if outputs is None else outputs
        return (count - 1) * self.stride + (self.kernel - 1) * self.dilation + 1


@dataclass(frozen=True)
class Taps:
    """The places of a result along one spatial axis that see the same elements of the window.

    Attributes:
        first, step, outputs: the places ``first + step * y`` for so many ``y``.
        kernel, dilation: the elements that they see, and how far apart they are in the data.
        offset: where in the data the first of them is, seen from ``y``.
        weights: which of the window's elements they are.
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
        """Behind the last element that is seen from ``y``."""
        return self.offset + (self.kernel - 1) * self.dilation + 1


Phase = tuple[Taps, ...]
"""The taps of each spatial axis."""


@dataclass(frozen=True)
class Phases:
    """How a convolution over spread data is divided.

    Attributes:
        lengths: of the result's spatial axes.
        kernel: elements of the window along each.
        each: the phases, in the order in which weights are packed.
    """

    lengths: tuple[int, ...]
    kernel: tuple[int, ...]
    each: tuple[Phase, ...]

    @property
    def are_equal(self) -> bool:
        """Whether all phases have as many places, along each axis."""
        return len({tuple(taps.outputs for taps in phase) for phase in self.each}) == 1


def whole(windows: tuple[Window, ...]) -> Phases:
    """Return the one phase of a convolution over data as it is."""
    one = tuple(Taps(0, 1, w.outputs, w.kernel, w.dilation, 0, range(w.kernel)) for w in windows)
    return Phases(tuple(w.outputs for w in windows), tuple(w.kernel for w in windows), (one,))


def phases_of(data: Padded, windows: tuple[Window, ...]) -> tuple[Padded, tuple[Window, ...], Phases]:
    """Data that is not spread, the windows over it that hold those of every phase, and the phases.

    Args:
        data: spread along its spatial axes, which are all but the first and the last.
        windows: over the spread data, of stride 1.

    Raises:
        Refusal: where windows have strides, or meet no data at all.
    """
    if any(w.stride != 1 for w in windows):
        raise Refusal("its windows have strides over spread data")
    shape, before = list(data.shape), list(data.before)
    along, common = [], []
    for axis, window in enumerate(windows, 1):
        taps, lowest = _taps(window, data.spacing[axis], data.before[axis])
        along.append(taps)
        outputs = max((t.outputs for t in taps), default=0)
        common.append(Window(outputs, max((t.end for t in taps if t.kernel), default=1), 1, 1))
        shape[axis], before[axis] = common[-1].span(), -lowest
    phases = tuple(itertools.product(*along))
    if not any(all(t.kernel for t in phase) for phase in phases):
        raise Refusal("its windows meet no data")
    fill = data.fill if any(before) or tuple(shape) != data.inner else None
    found = replace(data, shape=tuple(shape), before=tuple(before), fill=fill, spacing=())
    lengths = tuple(w.outputs for w in windows)
    return found, tuple(common), Phases(lengths, tuple(w.kernel for w in windows), phases)


def _taps(window: Window, spacing: int, before: int) -> tuple[list[Taps], int]:
    """Return the taps of an axis's phases, and what their offsets are counted from.

    The result at ``o`` meets with element ``u`` of the window what lies at ``o + u * dilation - before`` in the spread
    data: an element of the data where ``spacing`` divides that.
    """
    common = math.gcd(window.dilation, spacing)
    step, dilation = spacing // common, window.dilation // common
    found = []
    for first in range(min(spacing, window.outputs)):
        outputs = -(-(window.outputs - first) // spacing)
        start = next(
            (u for u in range(step) if (first + u * window.dilation - before) % spacing == 0), window.kernel
        )
        weights = range(start, window.kernel, step)
        offset = (first + start * window.dilation - before) // spacing
        found.append(Taps(first, spacing, outputs, len(weights), dilation, offset if weights else 0, weights))
    lowest = min((t.offset for t in found if t.kernel), default=0)
    return [replace(t, offset=t.offset - lowest) if t.kernel else t for t in found], lowest
