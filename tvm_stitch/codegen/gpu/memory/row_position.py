# SPDX-License-Identifier: Apache-2.0
"""The row of a thread, and the thread's columns in that row."""

from __future__ import annotations

from ....compat import Expr, tir
from ....graph.extent import Extent, as_expr, is_number
from ....plan.gpu.mapping import ColumnMapping
from ....plan.iteration.loops import Leaf
from ....plan.kernel import Stage
from ... import builder as B
from ...buffers import Buffers
from ...evaluator import Evaluator


class RowPosition:
    """The position of a thread among the rows and columns of a stage."""

    eval: Evaluator

    def __init__(self, stage: Stage, buffers: Buffers):
        self.stage, self.al, self.mapping = stage, stage.alignment, stage.row_mapping
        self.buffers = buffers
        self.domain = stage.alignment.domain
        self.lane: Expr = B.i64(0)
        self.slot: Expr = B.i64(0)
        self.block: Expr = B.i64(0)
        self.first_row: Expr = B.i64(0)  # of the block's group of rows
        self.segment: Expr = B.i64(0)  # which chunk of the row's columns the block has
        self.in_range: Expr | None = None
        self.guarded = False

    def inside(self, base: Expr, columns: Extent, cm: ColumnMapping) -> Expr:
        """Return the column that a thread works on. In shared-memory mode it is at most the row's last vector."""
        if not self.mapping.shared or self._tail(columns, base) is None:
            return base
        return B.bind(tir.min(base, as_expr(columns) - B.i64(cm.vector)), "col")

    def base(self, cm: ColumnMapping, step: Expr, chunk: Expr) -> Expr:
        """Return the first column of a vector."""
        position = self.position(cm, step, chunk)
        if self.mapping.row_splits == 1:
            return position
        assert isinstance(cm.steps, int)
        return self.segment * B.i64(cm.steps * cm.chunks * self.mapping.threads * cm.vector) + position

    def position(self, cm: ColumnMapping, step: Expr, chunk: Expr) -> Expr:
        """Return a vector's position in the block's segment."""
        group = chunk if is_number(cm.steps, 1) else step * B.i64(cm.chunks) + chunk
        if self.mapping.split:
            group = self.block * B.i64(cm.chunks) + chunk
        return (group * B.i64(self.mapping.threads) + self.lane) * B.i64(cm.vector)

    def _tail(self, columns: Extent, base: Expr) -> Expr | None:
        if isinstance(columns, int):
            covered = self.mapping.covered(columns)
            if covered == columns or (self.mapping.split and columns % covered == 0):
                return None
        return base < as_expr(columns)

    def _streamed(self, leaf: Leaf) -> bool:
        return self.stage.streams(leaf)
