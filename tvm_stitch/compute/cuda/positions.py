# SPDX-License-Identifier: Apache-2.0
"""Coordinates of a convolution kernel's thread in the result, and in tensors that have some of its axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...codegen import builder as B
from ...compat import Expr, tir
from ...graph.extent import is_number, product

Axes: TypeAlias = tuple[int | None, ...]
"""For each axis of a tensor, the axis of the convolution's result that indexes it. None for an axis of one element."""

FIRST = 2
"""The first spatial axis, behind images and channels."""


def spatial(axes: Axes) -> list[int]:
    """Return the spatial axes among ``axes``."""
    return [axis for axis in axes if axis is not None and axis >= FIRST]


def two_axes(extents: list[Expr]) -> list[Expr]:
    """Return the extents of rows and columns, of which one spatial axis has columns alone."""
    return [B.i64(1), *extents][-2:]


@dataclass(frozen=True)
class Positions:
    """Neighbouring positions of one image and channel.

    Attributes:
        whole: extents of the result.
        image, channel: coordinates of the image and the channel.
        vector: number of the positions' vector in the image.
        of_image: vectors of an image.
        lanes: positions of a vector.
    """

    whole: Sequence[Expr]
    image: Expr
    channel: Expr
    vector: Expr
    of_image: Expr
    lanes: int

    @staticmethod
    def differ(axes: Axes) -> bool:
        """Return whether the positions have elements of their own in a tensor of some axes."""
        return bool(spatial(axes))

    def are_neighbours(self, axes: Axes) -> bool:
        """Return whether the positions are neighbours in a tensor of some axes."""
        return len(spatial(axes)) == len(self.whole) - FIRST

    def first(self, axes: Axes) -> Expr:
        """Return the index of the first position's element in a tensor.

        The positions are neighbours in the tensor, or it has no spatial axes.
        """
        index = self._line(axes)
        return (index * self.of_image + self.vector) * B.i64(self.lanes) if spatial(axes) else index

    def at(self, axes: Axes, lane: Expr) -> Expr:
        """Return the index of one position's element."""
        position = self.vector * B.i64(self.lanes) + lane
        flat = self._line(axes)
        for axis in spatial(axes):
            extent = self.whole[axis]
            behind = product(self.whole[axis + 1 :])
            index = position if is_number(behind, 1) else quotient(position, behind)
            flat = flat * extent + (remainder(index, extent) if axis > FIRST else index)
        return flat

    def _line(self, axes: Axes) -> Expr:
        line = self.image if 0 in axes else B.i64(0)
        return line * self.whole[1] + self.channel if 1 in axes else line


@dataclass(frozen=True)
class LastAxis:
    """Neighbouring elements along the last axis of the result.

    Attributes:
        whole: extents of the result.
        at_first: coordinates of the first element.
    """

    whole: Sequence[Expr]
    at_first: Sequence[Expr]

    def differ(self, axes: Axes) -> bool:
        """Return whether the elements have elements of their own in a tensor of some axes."""
        return len(self.whole) - 1 in axes

    def are_neighbours(self, axes: Axes) -> bool:
        """Return whether the elements are neighbours in a tensor of some axes: they are if they differ."""
        return self.differ(axes)

    def first(self, axes: Axes) -> Expr:
        """Return the index of the first element in a tensor."""
        index: Expr = B.i64(0)
        for axis in axes:
            if axis is not None:
                index = index * self.whole[axis] + self.at_first[axis]
        return index

    def at(self, axes: Axes, lane: Expr) -> Expr:
        """Return the index of one element."""
        return self.first(axes) + lane if self.differ(axes) else self.first(axes)


def quotient(a: Expr, b: Expr) -> Expr:
    """Return the quotient of natural numbers that fit 32 bits, in which a GPU divides faster."""
    return tir.Cast("int64", tir.Div(tir.Cast("int32", a), tir.Cast("int32", b)))


def remainder(a: Expr, b: Expr) -> Expr:
    """Return the remainder of natural numbers that fit 32 bits."""
    return tir.Cast("int64", tir.Mod(tir.Cast("int32", a), tir.Cast("int32", b)))
