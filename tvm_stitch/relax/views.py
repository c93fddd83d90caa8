# SPDX-License-Identifier: Apache-2.0
"""What a Relax value looks like in the memory of the value that it is a view of: permuted, reshaped or broadcast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from ..graph.extent import Extent, as_extent, is_number, product, quotient, same
from .operators import operator_name

RESHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")
"""Operators whose results are their operands with other extents."""


@dataclass(frozen=True)
class View:
    """A value, and axes of extents and strides (in its elements) that another value is of it.

    Broadcast axes, and those of extent 1, have the stride 0.
    """

    value: Any
    extents: tuple[Extent, ...]
    strides: tuple[Extent, ...]


def shape_of(value: Any) -> tuple[Extent, ...] | None:
    """The extents of a tensor, None where they are unknown."""
    shape = getattr(value.ty, "shape", None)
    return tuple(as_extent(s) for s in shape.values) if isinstance(shape, relax.ShapeExpr) else None


def permutation(call: Any, rank: int) -> list[int]:
    """For each axis of what ``R.permute_dims`` makes, the axis of its operand."""
    axes = call.attrs.axes
    return [int(a) for a in axes] if axes is not None else list(range(rank))[::-1]


def whole(value: Any, extents: Sequence[Extent]) -> View:
    """A compact tensor as it is."""
    strides: list[Extent] = []
    inner: list[Extent] = [1]
    for extent in reversed(extents):
        strides.append(0 if is_number(extent, 1) else product(inner))
        inner.append(extent)
    return View(value, tuple(extents), tuple(strides[::-1]))


def views(value: Any, definition: Callable[[Any], Any]) -> Iterator[View]:
    """A value as views of what it is made from: first of the value itself, then of earlier and earlier ones.

    Args:
        value: a tensor whose extents are known.
        definition: gives the expression that a variable is bound to and that may be read in its stead, or None.
    """
    extents = shape_of(value)
    if extents is None:
        return
    yield whole(value, extents)
    steps: list[Any] = []
    call = definition(value)
    while call is not None and operator_name(call) in VIEWS:
        steps.append(call)
        source = call.args[0]
        extents = shape_of(source)
        if extents is None:
            return
        view: View | None = whole(source, extents)
        for step in reversed(steps):
            view = None if view is None else _through(step, view)
        if view is None:
            return
        yield view
        call = definition(source)


def _through(call: Any, view: View) -> View | None:
    """A view of what a call makes of a view; None where it is none."""
    extents = shape_of(call)
    if extents is None:
        return None
    return _OTHERS.get(call.op.name, _reshaped)(call, view, extents)


def _permuted(call: Any, view: View, extents: tuple[Extent, ...]) -> View:
    return View(view.value, extents, tuple(view.strides[a] for a in permutation(call, len(extents))))


def _broadcast(_call: Any, view: View, extents: tuple[Extent, ...]) -> View | None:
    missing = len(extents) - len(view.extents)
    strides: list[Extent] = [0] * missing
    for before, after, stride in zip(view.extents, extents[missing:], view.strides):
        if is_number(before, 1):
            strides.append(0)
        elif same(before, after):
            strides.append(stride)
        else:
            return None
    return View(view.value, extents, tuple(strides))


_OTHERS: dict[str, Callable[[Any, View, tuple[Extent, ...]], View | None]] = {
    "relax.permute_dims": _permuted,
    "relax.broadcast_to": _broadcast,
}

VIEWS = (*RESHAPES, *_OTHERS)
"""Operators whose results are views of their operands."""


def _reshaped(_call: Any, view: View, extents: tuple[Extent, ...]) -> View | None:
    """The same elements in the same order with other extents."""
    if any(is_number(e, 0) for e in (*view.extents, *extents)):
        return None
    runs = _runs(view)
    strides: list[Extent] = []
    left: Extent = 1
    stride: Extent = 0
    for extent in reversed(extents):
        if is_number(extent, 1):
            strides.append(0)
            continue
        if is_number(left, 1):
            if not runs:
                return None
            left, stride = runs.pop()
        rest = quotient(left, extent)
        if rest is None:
            return None
        strides.append(stride)
        left, stride = rest, product([stride, extent])
    return View(view.value, extents, tuple(strides[::-1])) if is_number(left, 1) and not runs else None


def _runs(view: View) -> list[tuple[Extent, Extent]]:
    """Extents and strides with neighbouring axes joined where one stride serves both."""
    runs: list[tuple[Extent, Extent]] = []
    for extent, stride in zip(view.extents, view.strides):
        if is_number(extent, 1):
            continue
        if runs and same(runs[-1][1], product([stride, extent])):
            runs[-1] = (product([runs[-1][0], extent]), stride)
        else:
            runs.append((extent, stride))
    return runs
