# SPDX-License-Identifier: Apache-2.0
"""Index arithmetic inside segments: simplified knowing that lanes never leave the segment they are in."""

from __future__ import annotations

import tvm

from .. import compat
from ..compat import Analyzer, Expr, Var
from ..graph.extent import Extent, as_expr, quotient, same
from ..plan.domain import Domain
from .evaluator import Evaluator


class Coordinate:
    """A row or column as ``outer * extent + inner``, and where both are at the moment."""

    def __init__(self, name: str, total: Extent, extent: Extent):
        self.total, self.extent = total, extent
        self.outer: Var | None = None if same(total, extent) else compat.tir.Var(f"{name}_outer", "int64")
        self.inner: Var = compat.tir.Var(f"{name}_inner", "int64")
        self.values: dict[Var, Expr] = {}

    @property
    def symbolic(self) -> Expr:
        """The coordinate in its own variables."""
        return self.inner if self.outer is None else self.outer * as_expr(self.extent) + self.inner

    def bind_ranges(self, analyzer: Analyzer) -> None:
        """Tell an analyzer the ranges of the variables."""
        zero = compat.const(0, "int64")
        analyzer.bind(self.inner, tvm.ir.Range(zero, as_expr(self.extent)))
        if self.outer is not None:
            count = quotient(self.total, self.extent)
            assert count is not None
            analyzer.bind(self.outer, tvm.ir.Range(zero, as_expr(count)))

    def move(self, outer: Expr, inner: Expr) -> Expr:
        """Go to a place; returns the coordinate there."""
        self.values = {self.inner: inner}
        if self.outer is None:
            return inner
        self.values[self.outer] = outer
        return outer * as_expr(self.extent) + inner


class Frame:
    """The row and the column of a pass, in which the indices of its accesses are simplified."""

    def __init__(self, domain: Domain, row: Coordinate, column: Coordinate | None):
        self.row, self.column = row, column
        self.analyzer = Analyzer()
        self.symbolic = {domain.row: row.symbolic}
        row.bind_ranges(self.analyzer)
        if column is not None:
            column.bind_ranges(self.analyzer)
            self.symbolic[domain.column] = column.symbolic

    def localize(self, index: Expr) -> Expr:
        """An index written in the domain's variables, at the current place."""
        if not compat.free_vars(index):
            return index
        simple = self.analyzer.simplify(compat.substitute(index, self.symbolic))
        values = dict(self.row.values)
        if self.column is not None:
            values.update(self.column.values)
        return compat.substitute(simple, values)


class FrameEvaluator(Evaluator):
    """An evaluator whose indices are simplified in a frame."""

    frame: Frame | None = None

    def localize(self, index: Expr) -> Expr:
        """Write an index in the current row and column instead of the domain's variables."""
        return super().localize(index) if self.frame is None else self.frame.localize(index)
