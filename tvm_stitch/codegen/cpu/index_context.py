# SPDX-License-Identifier: Apache-2.0
"""Index arithmetic inside segments: simplified with the knowledge that lanes never leave their segment."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import tvm

from ... import compat
from ...compat import Analyzer, Expr, Var
from ...graph.extent import Extent, as_expr, is_multiple, quotient, same
from ...graph.index_division import Divisions, changes_with
from ...plan.iteration.domain import Domain
from ...repairs.relay import simplifiable
from ...repairs.tir.arithmetic import HOST
from ..evaluator import Evaluator, widen


class Coordinate:
    """A row or column as ``outer * extent + inner``, with the current values of both.

    ``vectors`` is the number of lanes if the coordinate moves by whole vectors. It divides the extent. Then ``inner``
    is ``number * vectors + lane``. So a quotient by a multiple of the lanes is provably equal in all lanes.
    """

    def __init__(self, name: str, total: Extent, extent: Extent, vectors: int = 1):
        assert is_multiple(extent, vectors)
        self.total, self.extent, self.vectors = total, extent, vectors
        self.outer: Var | None = None if same(total, extent) else compat.tir.Var(f"{name}_outer", "int64")
        self.number: Var = compat.tir.Var(f"{name}_inner" if vectors == 1 else f"{name}_vector", "int64")
        self.lane: Var | None = None if vectors == 1 else compat.tir.Var(f"{name}_lane", "int64")
        self.values: dict[Var, Expr] = {}

    @property
    def symbolic(self) -> Expr:
        """The coordinate in its own variables."""
        inner = self._inner(self.number, self.lane)
        return inner if self.outer is None else self.outer * as_expr(self.extent) + inner

    def _inner(self, number: Expr, lane: Expr | None) -> Expr:
        return number if lane is None else number * compat.const(self.vectors, "int64") + lane

    def bind_ranges(self, analyzer: Analyzer, start: int = 0, extent: Extent | None = None) -> None:
        """Bind the ranges of the variables in an analyzer. The inner variable ranges over a slice of the segment."""
        for var, length in self.axes:
            first = 0
            if var is self.number and self.lane is None:
                first, length = start, length if extent is None else extent
            analyzer.bind(var, tvm.ir.Range.from_min_extent(compat.const(first, "int64"), as_expr(length)))

    @property
    def axes(self) -> list[tuple[Var, Extent]]:
        """The coordinate's variables with their extents."""
        found: list[tuple[Var, Extent]] = []
        if self.lane is None:
            found.append((self.number, self.extent))
        else:
            count = quotient(self.extent, self.vectors)
            assert count is not None
            found += [(self.number, count), (self.lane, self.vectors)]
        if self.outer is not None:
            segments = quotient(self.total, self.extent)
            assert segments is not None
            found.append((self.outer, segments))
        return found

    def move(self, outer: Expr, number: Expr, lane: Expr | None = None) -> Expr:
        """Move to a position and return its coordinate.

        With vectors, ``number`` is the index of the vector and ``lane`` that of the lane.
        """
        self.values = {self.number: number}
        if self.lane is not None:
            assert lane is not None
            self.values[self.lane] = lane
        inner = self._inner(number, lane)
        if self.outer is None:
            return inner
        self.values[self.outer] = outer
        return outer * as_expr(self.extent) + inner


class IndexContext:
    """The row and the column of a pass, in whose variables indices and conditions are simplified.

    ``part`` is the start and the extent of the current slice of the column's segment.
    """

    def __init__(
        self,
        domain: Domain,
        row: Coordinate,
        column: Coordinate | None,
        part: tuple[int, Extent] | None = None,
    ):
        self.row, self.column = row, column
        self.analyzer = Analyzer()
        self._known: dict[Hashable, Expr] = {}
        self.symbolic = {domain.row: row.symbolic}
        self.axes = [*row.axes, *(column.axes if column is not None else ())]
        self._divisions = Divisions(self.axes)
        row.bind_ranges(self.analyzer)
        if column is not None:
            column.bind_ranges(self.analyzer, *(part or (0, None)))
            self.symbolic[domain.column] = column.symbolic

    def localize(self, index: Expr) -> Expr:
        """Rewrite an index from the domain's variables to those of the frame."""
        if not compat.free_vars(index):
            return index
        key = compat.expression_key(index)  # accesses of many tensors share an index
        if key not in self._known:
            self._known[key] = self.simplify(compat.substitute(index, self.symbolic))
        return self._known[key]

    def is_shared(self, index: Expr, together: int) -> bool:
        """Return True if an index is the same in ``together`` segments, from any multiple of that number on."""
        assert self.column is not None and self.column.outer is not None
        outer, here = self.column.outer, self.localize(index)
        if outer not in compat.free_vars(here):
            return True
        block, inside = (compat.tir.Var(name, "int64") for name in ("block", "inside"))
        segments = dict(self.axes)[outer]
        axes = [*(axis for axis in self.axes if axis[0] is not outer), (block, segments), (inside, together)]
        at = compat.substitute(here, {outer: block * compat.const(together, "int64") + inside})
        return not changes_with(inside, [at], axes)

    def simplify(self, value: Expr) -> Expr:
        """Simplify an expression in the frame's variables."""
        return self.analyzer.simplify(simplifiable(self._divisions.divided(value)))

    def actual(self, value: Expr) -> Expr:
        """Substitute the current position into an expression in the frame's variables."""
        values = dict(self.row.values)
        if self.column is not None:
            values.update(self.column.values)
        return compat.substitute(value, values)


class ContextEvaluator(Evaluator):
    """An evaluator that simplifies indices in a frame."""

    arithmetic = HOST
    frame: IndexContext | None = None

    def localize(self, index: Expr) -> Expr:
        """Write an index in the frame's variables (without a frame: in the current row and column)."""
        return super().localize(index) if self.frame is None else self.sound(self.frame.localize(index))

    def operation(self, e: Expr, visit: Callable[[Expr], Expr]) -> Expr:
        """Rebuild an operation over visited operands."""
        return widen(e, visit, self.arithmetic)
