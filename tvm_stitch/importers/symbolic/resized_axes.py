# SPDX-License-Identifier: Apache-2.0
"""Axes of symbolic sizes are resized one by one: elements are gathered at positions that a kernel computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op as R

from .computed import computed, spelled

Position = Callable[[Any, Any, Any], Any]
"""Returns the position in the old axis of a new element, given its number and both extents.

Numbers and extents are int64, and positions are float32.
"""


def nearest(builder: relax.BlockBuilder, x: Any, axis: int, new: Any, place: Position) -> Any:
    """Return a tensor with an axis whose elements are those at the places, or at the ends.

    Args:
        builder: gets the bindings.
        x: the tensor.
        axis: number of the axis.
        new: its new extent.
        place: returns whole numbers.
    """
    at = vector(builder, "nearest", x.ty.shape[axis], new, partial(_clipped, place, 0))
    return builder.emit(R.take(x, at, axis, mode="fast"))


def linear(builder: relax.BlockBuilder, x: Any, axis: int, new: Any, position: Position) -> Any:
    """Return a tensor with an axis interpolated between the elements on both sides. The ends are repeated."""
    old, new, emit = x.ty.shape[axis], spelled(new), builder.emit
    left, right = (
        emit(
            R.take(
                x,
                vector(builder, name, old, new, partial(_clipped, _floor(position), tap)),
                axis,
                mode="fast",
            )
        )
        for tap, name in enumerate(("below", "above"))
    )
    weight = _along(builder, x, axis, new, partial(_share, position), "share")
    return emit(R.add(left, emit(R.multiply(emit(R.subtract(right, left)), weight))))


def cubic(builder: relax.BlockBuilder, x: Any, axis: int, new: Any, position: Position, alpha: float) -> Any:
    """Return a tensor with an axis interpolated by Keys's cubic kernel of a coefficient. The ends are repeated."""
    old, new, emit = x.ty.shape[axis], spelled(new), builder.emit
    total: Any = None
    for tap in range(-1, 3):
        at = vector(builder, "tap", old, new, partial(_clipped, _floor(position), tap))
        weight = _along(builder, x, axis, new, partial(_weight, position, tap, alpha), "weight")
        term = emit(R.multiply(emit(R.take(x, at, axis, mode="fast")), weight))
        total = term if total is None else emit(R.add(total, term))
    return total


def vector(builder: relax.BlockBuilder, name: str, old: Any, new: Any, value: Position) -> Any:
    """Return a tensor [new] of an expression for each new element."""

    def values(old: Any, new: Any) -> Any:
        return te.compute((new,), lambda i: value(i, old, new), name=name)

    return computed(builder, name, values, (), (old, new))


def number(value: Any) -> Any:
    """Return an extent, the number of an element or a Python number in float32.

    A whole number is its own floor, of which TVM knows no range. TVM's analysis of ranges fails on products of floats.
    """
    if isinstance(value, (int, float)):
        return tirx.const(value, "float32")
    return tirx.floor(value.astype("float32"))


def _along(builder: relax.BlockBuilder, x: Any, axis: int, new: Any, value: Position, name: str) -> Any:
    """Return a vector in the type of a tensor, and in a shape that broadcasts along its axis."""
    found = vector(builder, name, x.ty.shape[axis], new, value)
    found = builder.emit(R.reshape(found, [new, *[1] * (len(x.ty.shape) - axis - 1)]))
    dtype = str(x.ty.dtype.dtype)
    return found if dtype == "float32" else builder.emit(R.astype(found, dtype))


def _floor(position: Position) -> Position:
    return lambda i, old, new: tirx.floor(position(i, old, new))


def _clipped(place: Position, tap: int, i: Any, old: Any, new: Any) -> Any:
    """Return a place, or the one ``tap`` elements behind it, inside the old axis."""
    at = place(i, old, new).astype("int64") + tap
    return tirx.max(tirx.min(at, old - 1), tirx.const(0, "int64"))


def _share(position: Position, i: Any, old: Any, new: Any) -> Any:
    place = position(i, old, new)
    return place - tirx.floor(place)


def _weight(position: Position, tap: int, alpha: float, i: Any, old: Any, new: Any) -> Any:
    """Return the weight of a tap: 0 is the element below a position, 1 the one above."""
    distance = tirx.abs(_share(position, i, old, new) - number(tap))
    if tap in (0, 1):
        return (number(alpha + 2) * distance - number(alpha + 3)) * distance * distance + number(1)
    far = (number(alpha) * distance - number(5 * alpha)) * distance + number(8 * alpha)
    return far * distance - number(4 * alpha)
