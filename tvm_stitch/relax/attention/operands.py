# SPDX-License-Identifier: Apache-2.0
"""Find attention's operands: the earliest value whose rows the kernel can read, as <leading axes, row, size>."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from tvm import relax

from ...compute.attention import Operand
from ...graph.dtype import HALF
from ...graph.extent import Extent, is_number, product, same, same_shape
from ...support.failures import Refusal
from ..rewriting.operators import operator_name
from ..rewriting.rules import Match
from ..rewriting.views import (
    SLICES,
    VIEWS,
    Part,
    View,
    broadcast,
    permutation,
    reordered,
    reshaped,
    shape_of,
    through,
    whole,
)
from .scores import PatternReader

LEADING_AXES = 3
"""Axes before rows and columns that operands may have."""


@dataclass(frozen=True)
class Rounded:
    """A multiple of a float32 value, rounded to a half type. It is computed before attention, in the value's own order.

    A model may scale, permute and round a value in turn. The result of this order has the same elements, and rows that
    a kernel can read.
    """

    value: relax.Expr
    factor: float
    dtype: str

    @property
    def ty(self) -> relax.TensorType:
        """The type of the rounded tensor."""
        return relax.TensorType(self.value.ty.shape, self.dtype)

    def emitted(self, match: Match) -> relax.Expr:
        """Emit the operators that compute it."""
        value = match.now(self.value)
        if self.factor != 1.0:
            value = match.emit(relax.op.multiply(value, relax.const(self.factor, str(self.value.ty.dtype))))
        return match.emit(relax.op.astype(value, self.dtype))


def stored_value(operand: relax.Expr | Rounded) -> relax.Expr:
    """Return the value that an operand is, or is rounded from."""
    return operand.value if isinstance(operand, Rounded) else operand


class OperandReader:
    """Finds the stored values that hold attention's operands.

    Args:
        reader: reads the function around them.
        widens: whether the kernel reads values of half types as the float32 that they are cast to.
    """

    def __init__(self, reader: PatternReader, widens: bool = False):
        self.reader, self.widens = reader, widens

    def rows(
        self,
        value: relax.Expr,
        extents: tuple[Extent, ...],
        repeats: bool,
        transposed: bool = False,
        factors: bool = True,
    ) -> tuple[View, float]:
        """Return the earliest value whose rows the kernel can read, as a view of shape ``extents``, and its factor.

        The view is of a :class:`Rounded` value if the kernel can read no other one.

        Args:
            value: an operand of a matmul.
            extents: extents of the leading axes and of the matrices.
            repeats: whether leading axes that the value lacks, or has with extent 1, are repeated.
            transposed: whether the kernel reads the columns of the matrices as rows.
            factors: whether the operand may be a multiple of the value.
        """
        start = value
        while not same_shape(shape_of(start) or (), extents):
            call = self.reader.definition(start)
            if call is None or not self.reader.keeps_matrices(call):
                start = value
                break
            start = call.args[0]

        def seen(view: View) -> View | None:
            viewed = reshaped(view, extents) or (broadcast(view, extents) if repeats else None)
            return _transposed(viewed) if transposed and viewed is not None else viewed

        return _earliest(((seen(view), f) for view, f in self._views(start, extents[:-2])), factors)

    def heads(self, value: relax.Expr, factors: bool = True) -> tuple[View, float]:
        """Return the same for a value <batch, row, head, element>, as a view <batch, head, row, element>.

        Raises:
            Refusal: if the value has no such shape.
        """
        extents = shape_of(value)
        if extents is None or len(extents) != 4:
            raise Refusal("its shapes are not known")
        return _earliest(((reordered(view, (0, 2, 1, 3)), f) for view, f in self._views(value)), factors)

    def shapes(self, value: relax.Expr, matrix: tuple[Extent, Extent]) -> list[tuple[Extent, ...]]:
        """Return the shapes of the values that views and scales make an operand of, as far as they hold its matrices.

        Args:
            value: an operand of a matmul.
            matrix: rows and columns of a matrix. A value may also hold the transposed matrices.
        """
        axes = []
        own = shape_of(value) or ()
        while (call := self.reader.definition(value)) is not None:
            if (scaled := self.reader.scaled(call)) is not None:
                value = scaled[0]
            elif self._widened(call):
                value = call.args[0]
            elif operator_name(call) in VIEWS:
                value = call.args[0]
                before = shape_of(value)
                if before and same(product(before), product(own)):
                    if same_shape(before[-2:], matrix) or same_shape(before[-2:], matrix[::-1]):
                        axes.append(before)
            else:
                break
        return axes

    def _views(
        self, value: relax.Expr, leading: tuple[Extent, ...] | None = None
    ) -> Iterator[tuple[View, float]]:
        """Yield a value as views of ever earlier values that it is computed from, each with its factor.

        Values of float32 that are rounded on the way are :class:`Rounded`.

        Args:
            value: an operand.
            leading: the leading axes, which the value itself may have joined, or None for the axes that it has.
        """
        extents = shape_of(value)
        if extents is None:
            return
        yield whole(value, extents), 1.0
        factor, wide, steps, dtype = 1.0, 1.0, list[Any](), str(value.ty.dtype)
        while (step := self.reader.part(value) or self.reader.definition(value)) is not None:
            call = step.call if isinstance(step, Part) else step
            name = operator_name(call)
            scaled = self.reader.scaled(call)
            if scaled is not None:
                value = scaled[0]
                if str(value.ty.dtype) == dtype:
                    factor *= scaled[1]
                else:
                    wide *= scaled[1]
            elif name in (*VIEWS, *SLICES, "relax.split"):
                value = call.args[0]
                steps.append(step)
            elif name == "relax.astype" and str(call.args[0].ty.dtype) in (dtype, "float32"):
                value = call.args[0]  # a cast and its inverse: no bits are lost
            elif self._widened(call) and dtype == "float32":
                value = call.args[0]
                dtype = str(value.ty.dtype)
            else:
                return
            extents = shape_of(value)
            if extents is None:
                return
            view: View | None = whole(value, extents)
            for taken in reversed(steps):
                view = None if view is None else self._through(taken, view, leading)
            if view is None:
                continue
            if str(value.ty.dtype) == dtype:
                factor, wide = factor * wide, 1.0
                yield view, factor
            elif dtype in HALF and str(value.ty.dtype) == "float32" and not any(map(_takes_part, steps)):
                yield replace(view, value=Rounded(value, wide, dtype)), factor

    def _widened(self, call: relax.Call) -> bool:
        """Return whether a call casts a half type to float32, and the kernel reads the half type."""
        if not self.widens or operator_name(call) != "relax.astype" or str(call.ty.dtype) != "float32":
            return False
        return str(call.args[0].ty.dtype) in HALF

    def _through(
        self, step: relax.Call | Part, view: View, leading: tuple[Extent, ...] | None
    ) -> View | None:
        """Return the view behind one more step. Leading axes that are separate already stay separate."""
        before = shape_of((step.call if isinstance(step, Part) else step).args[0])
        if before is None:
            return None
        apart = (
            leading is not None and len(before) >= 2 and same_shape(view.extents, (*leading, *before[-2:]))
        )
        if apart and not isinstance(step, Part):
            if self.reader.keeps_matrices(step):
                return view
            if _is_transposition(step):
                return _transposed(view)
        if not same_shape(view.extents, before):
            again = reshaped(view, before)
            if again is None:
                return None
            view = again
        return through(step, view)


def _earliest(seen: Iterable[tuple[View | None, float]], factors: bool) -> tuple[View, float]:
    """Return the last of some views, with its factor, that has the elements of a row next to each other in memory.

    Rounded values count only if there is no other one.
    """
    best: dict[bool, tuple[View, float]] = {}
    for view, factor in seen:
        if view is not None and (factors or factor == 1.0):
            if is_number(view.strides[-1], 1) or is_number(view.extents[-1], 1):
                best[isinstance(view.value, Rounded)] = view, factor
    if not best:
        raise Refusal("the elements of an operand's rows are not adjacent in memory")
    return best[min(best)]


def _takes_part(step: relax.Call | Part) -> bool:
    """Return whether a step takes some elements of its operand. Rounding all of them would be more work."""
    return isinstance(step, Part) or operator_name(step) in SLICES


def _transposed(view: View) -> View:
    """Return the view with rows and columns of its matrices exchanged."""
    return reordered(view, [*range(len(view.extents) - 2), -1, -2])


def _is_transposition(call: relax.Call) -> bool:
    """Return whether a call exchanges the rows and columns of matrices, and nothing else."""
    if operator_name(call) != "relax.permute_dims":
        return False
    rank = len(shape_of(call) or ())
    return rank >= 2 and permutation(call, rank) == [*range(rank - 2), rank - 1, rank - 2]


def as_operand(view: View) -> Operand:
    """Return the value of a view as an operand that is read row by row."""
    return operand_of(view.value, of_rows(view.strides), view.offset)


def operand_of(value: relax.Expr | Rounded, strides: tuple[Extent, ...], offset: Extent = 0) -> Operand:
    """Return a tensor as an operand with the given strides and offset, in elements."""
    return Operand(tuple(shape_of(value) or ()), str(value.ty.dtype), offset, strides)


def of_scores(strides: Sequence[Extent]) -> tuple[Extent, ...]:
    """Return the strides of three leading axes, of rows and of columns, from the strides of all axes."""
    return (*three(strides[:-2], 0), *strides[-2:])


def of_rows(strides: Sequence[Extent]) -> tuple[Extent, ...]:
    """Return the strides of three leading axes and of rows, from the strides of all axes."""
    return (*three(strides[:-2], 0), strides[-2])


def three(extents: Sequence[Extent], filler: Extent = 1) -> tuple[Extent, Extent, Extent]:
    """Return the extents or strides of three leading axes, with ``filler`` for the first ones if there are fewer."""
    filled = (*[filler] * (LEADING_AXES - len(extents)), *extents)
    return cast("tuple[Extent, Extent, Extent]", filled)
