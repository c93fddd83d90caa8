# SPDX-License-Identifier: Apache-2.0
"""Where a thread of a convolution's kernel is in the result, and in tensors that have some of its axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...codegen import builder as B
from ...compat import Expr, tir
from ...graph.extent import is_number, product

Axes: TypeAlias = tuple[int | None, ...]
"""For each axis of a tensor, the axis of the convolution's result that indexes it; None for one of a single element."""

FIRST = 2
"""The first axis of places, behind images and channels."""


def spatial(axes: Axes) -> list[int]:
    """Return those of some axes that run over places."""
    return [axis for axis in axes if axis is not None and axis >= FIRST]


@dataclass(frozen=True)
class Places:
    """Neighbouring places of one image and channel.

    Attributes:
        whole: the extents of the result.
        image, channel: which they are of.
        vector: their number, in vectors.
        of_image: vectors of an image.
        lanes: places of a vector.
    """

    whole: Sequence[Expr]
    image: Expr
    channel: Expr
    vector: Expr
    of_image: Expr
    lanes: int

    def are_neighbours(self, axes: Axes) -> bool:
        """Return whether the places are neighbours in a tensor of some axes."""
        return len(spatial(axes)) == len(self.whole) - FIRST

    def first(self, axes: Axes) -> Expr:
        """Return the first one's element in a tensor in which they are neighbours, or that has none of their axes."""
        found = self._line(axes)
        return (found * self.of_image + self.vector) * B.i64(self.lanes) if spatial(axes) else found

    def at(self, axes: Axes, lane: Expr) -> Expr:
        """Return the element of one of them."""
        place = self.vector * B.i64(self.lanes) + lane
        found = self._line(axes)
        for axis in spatial(axes):
            extent = self.whole[axis]
            behind = product(self.whole[axis + 1 :])
            index = place if is_number(behind, 1) else quotient(place, behind)
            found = found * extent + (remainder(index, extent) if axis > FIRST else index)
        return found

    def _line(self, axes: Axes) -> Expr:
        found = self.image if 0 in axes else B.i64(0)
        return found * self.whole[1] + self.channel if 1 in axes else found


def quotient(a: Expr, b: Expr) -> Expr:
    """Of natural numbers that 32 bits hold, in which a GPU divides faster."""
    return tir.Cast("int64", tir.Div(tir.Cast("int32", a), tir.Cast("int32", b)))


def remainder(a: Expr, b: Expr) -> Expr:
    """Return the same for what is left."""
    return tir.Cast("int64", tir.Mod(tir.Cast("int32", a), tir.Cast("int32", b)))
