# SPDX-License-Identifier: Apache-2.0
"""Describe a Relax value as a view of another value's memory: permuted, reshaped, broadcast or sliced.

Each operand of a matmul has a chain of views, through permutations, reshapes and broadcasts. The matmul takes the
deepest pair that one call of a library can read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...compat import elements
from ...graph.dtype import item_bytes
from ...graph.extent import Extent, as_extent, is_number, is_static, product, quotient, same, total
from .operators import operator_name

RESHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")
"""Operators whose results are their operands with other extents."""


@dataclass(frozen=True)
class View:
    """A value, with extents and strides (in its elements) that describe another value in its memory.

    Broadcast axes, and those of extent 1, have the stride 0. ``offset`` is the position of the first element, which
    is 0 for views that are not slices.
    """

    value: Any
    extents: tuple[Extent, ...]
    strides: tuple[Extent, ...]
    offset: Extent = 0


@dataclass(frozen=True)
class Part:
    """One of the results of ``R.split``: the call, and the index of the result."""

    call: Any
    index: int


def shape_of(value: relax.Expr) -> tuple[Extent, ...] | None:
    """Return the extents of a tensor, or None if they are unknown."""
    shape = getattr(value.ty, "shape", None)
    return tuple(as_extent(s) for s in elements(shape.values)) if isinstance(shape, relax.ShapeExpr) else None


def has_elements(*values: Any) -> bool:
    """Return True if no tensor has an extent that is known to be 0."""
    return not any(is_number(extent, 0) for value in values for extent in shape_of(value) or ())


def bytes_of(value: relax.Expr) -> float:
    """Return the bytes of a tensor, or infinity if they are not known."""
    shape = shape_of(value)
    if shape is None or not is_static(shape):
        return math.inf
    return math.prod(shape) * item_bytes(str(value.ty.dtype))


def permutation(call: relax.Call, rank: int) -> list[int]:
    """Return, for each axis of the result of ``R.permute_dims``, the axis of its operand."""
    axes = call.attrs.axes
    return [int(a) % rank for a in axes] if axes is not None else list(range(rank))[::-1]


def permuted_constant(value: relax.Expr, values: Mapping[relax.Var, relax.Expr]) -> np.ndarray | None:
    """Return the array of a constant, or of one whose axes are permuted. None for other values.

    Args:
        value: a constant, or a variable.
        values: what variables are bound to.
    """
    defined: Any = values.get(value) if isinstance(value, relax.Var) else value
    if isinstance(defined, tvm.ir.GenericConst):
        return np.asarray(defined.value.numpy())
    if operator_name(defined) != "relax.permute_dims":
        return None
    before = permuted_constant(defined.args[0], values)
    return None if before is None else before.transpose(permutation(defined, before.ndim))


def whole(value: relax.Expr | None, extents: Sequence[Extent]) -> View:
    """Return the view of a compact tensor that is the tensor itself."""
    strides: list[Extent] = []
    inner: list[Extent] = [1]
    for extent in reversed(extents):
        strides.append(0 if is_number(extent, 1) else product(inner))
        inner.append(extent)
    return View(value, tuple(extents), tuple(strides[::-1]))


def definition(values: Mapping[relax.Var, relax.Expr], value: relax.Expr) -> relax.Call | None:
    """Return the call that ``values`` bind a variable to, or None.

    The operands of the call must be readable in place of the variable.
    """
    call = values.get(value) if isinstance(value, relax.Var) else None
    if not isinstance(call, relax.Call) or not call.args:
        return None
    inside = any(isinstance(arg, relax.DataflowVar) for arg in call.args)
    return None if inside and not isinstance(value, relax.DataflowVar) else call


def views(value: relax.Expr, definition: Callable[[relax.Expr], relax.Expr | None]) -> Iterator[View]:
    """Yield a value as views: first of the value itself, then of earlier and earlier values that it is made from.

    Args:
        value: a tensor whose extents are known.
        definition: returns the expression that a variable is bound to and that may be read in its place, or None.
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
            view = None if view is None else through(step, view)
        if view is None:
            return
        yield view
        call = definition(source)


def through(step: relax.Call | Part, view: View) -> View | None:
    """Return the view of a step's result, for a step on a view, or None if the result is not a view.

    A step is one of ``VIEWS``, a slice, or a part.
    """
    if isinstance(step, Part):
        return _part(step, view)
    extents = shape_of(step)
    if extents is None:
        return None
    name = operator_name(step)
    if name in RESHAPES:
        return reshaped(view, extents)
    return _OTHERS[name](step, view, extents) if name in _OTHERS else None


def reordered(view: View, order: Sequence[int]) -> View:
    """Return a view with its axes in another order. ``order`` has for each axis its former position."""
    return replace(
        view, extents=tuple(view.extents[a] for a in order), strides=tuple(view.strides[a] for a in order)
    )


def _permuted(call: relax.Call, view: View, extents: tuple[Extent, ...]) -> View:
    return reordered(view, permutation(call, len(extents)))


def broadcast(view: View, extents: Sequence[Extent]) -> View | None:
    """Return a view with its elements repeated along axes, or None if the extents may differ otherwise."""
    missing = len(extents) - len(view.extents)
    strides: list[Extent] = [0] * missing
    for before, after, stride in zip(view.extents, extents[missing:], view.strides):
        if is_number(before, 1):
            strides.append(0)
        elif same(before, after):
            strides.append(stride)
        else:
            return None
    return replace(view, extents=tuple(extents), strides=tuple(strides))


def _sliced(call: relax.Call, view: View, extents: tuple[Extent, ...]) -> View | None:
    axes, begins, _ends, *steps = (integers_of(arg) for arg in call.args[1:])
    if axes is None or begins is None or any(step is None or set(step) != {1} for step in steps):
        return None
    offset, strides = view.offset, list(view.strides)
    for axis, begin in zip(axes, begins):
        extent = view.extents[axis]
        if begin < 0 or not isinstance(extent, int) or begin >= extent:
            return None
        offset = total([offset, product([strides[axis], begin])])
    strides = [0 if is_number(e, 1) else s for e, s in zip(extents, strides)]
    return replace(view, extents=extents, strides=tuple(strides), offset=offset)


def _part(part: Part, view: View) -> View | None:
    attrs, field = part.call.attrs, part.call.ty.fields[part.index]
    extents = tuple(as_extent(e) for e in field.shape.values)
    axis = int(attrs.axis) % len(extents)
    cuts = attrs.indices_or_sections
    if isinstance(cuts, tvm.tirx.IntImm):
        begin = product([part.index, extents[axis]])
        if not same(product([int(cuts), extents[axis]]), view.extents[axis]):
            return None
    else:
        begin = int(cuts[part.index - 1]) if part.index else 0
    strides = tuple(0 if is_number(e, 1) else s for e, s in zip(extents, view.strides))
    offset = total([view.offset, product([view.strides[axis], begin])])
    return replace(view, extents=extents, strides=strides, offset=offset)


def parts_of(split: relax.Call) -> list[tuple[int, int]]:
    """Return the begin and end of each part of ``R.split`` along its axis, or nothing for a symbolic axis."""
    axis = int(split.attrs.axis)
    extents = [as_extent(field.shape.values[axis]) for field in split.ty.fields]
    return list(pairwise(accumulate(extents, initial=0))) if is_static(extents) else []


def integers_of(value: relax.Expr) -> list[int] | None:
    """Return the integers of a tuple of constants, or None for anything else."""
    if not isinstance(value, (relax.Tuple, relax.ShapeExpr)):
        return None
    fields = value.fields if isinstance(value, relax.Tuple) else value.values
    numbers = [as_extent(getattr(field, "value", field)) for field in fields]
    return numbers if numbers and is_static(numbers) else None


_OTHERS: dict[str, Callable[[Any, View, tuple[Extent, ...]], View | None]] = {
    "relax.permute_dims": _permuted,
    "relax.broadcast_to": lambda _call, view, extents: broadcast(view, extents),
    "relax.strided_slice": _sliced,
}

SLICES = ("relax.strided_slice",)
"""Operators whose results may be slices of their operands."""

VIEWS = (*RESHAPES, "relax.permute_dims", "relax.broadcast_to")
"""Operators whose results are views of their operands."""


def reshaped(view: View, extents: Sequence[Extent]) -> View | None:
    """Return the same elements in the same order with other extents, or None if one stride an axis is not enough."""
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
    if not is_number(left, 1) or runs:
        return None
    return replace(view, extents=tuple(extents), strides=tuple(strides[::-1]))


def _runs(view: View) -> list[tuple[Extent, Extent]]:
    """Return extents and strides, with neighbouring axes joined if one stride serves both."""
    runs: list[tuple[Extent, Extent]] = []
    for extent, stride in zip(view.extents, view.strides):
        if is_number(extent, 1):
            continue
        if runs and same(runs[-1][1], product([stride, extent])):
            runs[-1] = (product([runs[-1][0], extent]), stride)
        else:
            runs.append((extent, stride))
    return runs
