# SPDX-License-Identifier: Apache-2.0
"""One tensor of the values of all steps.

Values that are slices of a tensor, one for each step, are that tensor. Values that equal operators compute of such
values are computed at once: the products of all inputs are one matmul.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax
from tvm.relax import op as R

from ... import compat
from ...compat import int_value
from ..rewriting.operators import operator_name
from .arrays import array_of
from .written_out import same_value

_ELEMENT_WISE = {
    "relax.add",
    "relax.subtract",
    "relax.multiply",
    "relax.divide",
    "relax.sigmoid",
    "relax.tanh",
    "relax.nn.relu",
}


class Stacked:
    """Makes tensors ``<T, ...>`` of T values ``<...>``.

    Args:
        values: the values of the function's variables.
        emit: binds a value in the function after.
        now: gives an expression of the function before as it is in the function after.
    """

    def __init__(
        self,
        values: Mapping[relax.Var, relax.Expr],
        emit: Callable[[relax.Expr], relax.Var],
        now: Callable[[relax.Expr], relax.Expr],
    ):
        self.values, self.emit, self.now = values, emit, now
        self._made: list[tuple[list[relax.Expr], relax.Expr]] = []

    def of(self, steps: Sequence[relax.Expr]) -> relax.Expr:
        """Return the tensor of the values of all steps, each of rank 2 or more."""
        for known, made in self._made:
            if len(known) == len(steps) and all(a.same_as(b) for a, b in zip(known, steps)):
                return made
        made = self._lifted(list(steps))
        if made is None:
            made = self.emit(R.stack([self.now(each) for each in steps], 0))
        self._made.append((list(steps), made))
        return made

    def _lifted(self, steps: list[relax.Expr]) -> relax.Expr | None:
        if all(each.same_as(steps[0]) for each in steps):
            shape = [len(steps), *steps[0].ty.shape.values]
            return self.emit(R.broadcast_to(self.emit(R.expand_dims(self.now(steps[0]), 0)), shape))
        made = [self.values.get(each) if isinstance(each, relax.Var) else None for each in steps]
        if all(isinstance(each, relax.TupleGetItem) for each in made):
            return self._item(made)
        calls = [each for each in made if isinstance(each, relax.Call) and operator_name(each)]
        first = calls[0] if calls else None
        if first is None or len(calls) < len(steps):
            return None
        name = operator_name(first)
        if any(operator_name(each) != name for each in calls):
            return None
        if name in ("relax.take", "relax.strided_slice"):
            return self._sliced(calls, name)
        if not all(compat.structural_equal(each.attrs, first.attrs) for each in calls):
            return None
        if name == "relax.matmul" and self._unchanging(calls, 1) and calls[0].args[1].ty.ndim == 2:
            x = self.of([each.args[0] for each in calls])
            return self.emit(R.matmul(x, self.now(first.args[1]), first.attrs.out_dtype or None))
        if name in _ELEMENT_WISE:
            return self._element_wise(calls)
        return None

    def _item(self, made: Sequence[Any]) -> relax.Expr | None:
        """Return the tensor of the same parts of splits along the last axis."""
        tuples = [self.values.get(each.tuple_value) for each in made]
        index = made[0].index
        splits = [
            each for each in tuples if isinstance(each, relax.Call) and operator_name(each) == "relax.split"
        ]
        if len(splits) < len(made) or any(each.index != index for each in made):
            return None
        first = splits[0]
        rank = first.args[0].ty.ndim
        if int(first.attrs.axis) not in (-1, rank - 1):
            return None
        if not all(compat.structural_equal(each.attrs, first.attrs) for each in splits):
            return None
        x, at = self.of([each.args[0] for each in splits]), first.attrs.indices_or_sections
        count = int_value(at) if hasattr(at, "value") else None
        parts = self.emit(R.split(x, count if count is not None else [int(each) for each in at], axis=-1))
        return self.emit(relax.TupleGetItem(parts, index))

    def _sliced(self, calls: Sequence[relax.Call], name: str) -> relax.Expr | None:
        """Return the tensor that values are slices of, in order along one axis."""
        source = calls[0].args[0]
        if not all(each.args[0].same_as(source) for each in calls):
            return None
        places = [_place(each, name) for each in calls]
        axes = {place[0] if place else None for place in places}
        if len(axes) > 1 or None in axes:
            return None
        axis = next(place[0] for place in places if place)
        positions = [place[1] for place in places if place]
        extent = int_value(source.ty.shape.values[axis])
        forwards, backwards = list(range(len(calls))), list(range(len(calls)))[::-1]
        if extent is None or positions not in (forwards, backwards) or extent < len(calls):
            return None
        whole = self.now(source)
        if extent > len(calls):
            whole = self.emit(R.strided_slice(whole, [axis], [0], [len(calls)]))
        rank = source.ty.ndim
        if positions == backwards:
            whole = self.emit(R.flip(whole, axis))
        moved = (
            whole
            if axis == 0
            else self.emit(R.permute_dims(whole, [axis, *(a for a in range(rank) if a != axis)]))
        )
        return moved if name == "relax.take" else self.emit(R.expand_dims(moved, axis + 1))

    def _unchanging(self, calls: Sequence[relax.Call], at: int) -> bool:
        """Return whether an operand of all calls is the same."""
        return all(same_value(self.values, each.args[at], calls[0].args[at]) for each in calls)

    def _element_wise(self, calls: Sequence[relax.Call]) -> relax.Expr | None:
        operands, rank = [], calls[0].ty.ndim
        for at in range(len(calls[0].args)):
            given = [each.args[at] for each in calls]
            if self._unchanging(calls, at) and given[0].ty.ndim < rank:
                operands.append(self.now(given[0]))
            elif all(each.ty.ndim == rank for each in given):
                operands.append(self.of(given))
            else:
                return None
        made = calls[0]
        return self.emit(relax.Call(made.op, operands, made.attrs))


def _place(call: relax.Call, name: str) -> tuple[int, int] | None:
    """Return the axis and the position of a slice of one element, or None for other slices."""
    rank = call.args[0].ty.ndim
    if name == "relax.take":
        index = array_of(call.args[1], lambda _: None)
        if index is None or index.ndim or call.attrs.axis is None:
            return None
        return int(call.attrs.axis) % rank, int(index)
    parts = [_numbers(arg) for arg in call.args[1:4]]
    if any(len(each) != 1 for each in parts):
        return None
    (axis,), (begin,), (end,) = parts
    axis %= rank
    one = end - begin == 1 and int_value(call.ty.shape.values[axis]) == 1
    return (axis, begin) if one else None


def _numbers(arg: Any) -> list[int]:
    """Return the known numbers of a tuple."""
    fields = arg.fields if isinstance(arg, relax.Tuple) else []
    return [number for each in fields if (number := int_value(getattr(each, "value", each))) is not None]
