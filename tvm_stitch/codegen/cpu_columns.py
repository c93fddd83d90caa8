# SPDX-License-Identifier: Apache-2.0
"""Lanes along the columns: one row after the other, tasks taking blocks of rows."""

from __future__ import annotations

from collections.abc import Callable

from .. import compat
from ..compat import Buffer, Expr, tir
from ..graph.extent import Extent, as_expr
from ..plan.cpu_mapping import Lanes
from ..plan.passes import Pass
from . import builder as B
from .combine import accumulator_dtype, identity
from .cpu_base import CpuEmitter, accumulator, ceildiv, extent_min, fold, merged, times
from .cpu_lanes import LaneWriter, from_held, to_held

Body = Callable[[Expr, LaneWriter, "Expr | None"], None]


class ColumnEmitter(CpuEmitter):
    """Rows one by one; each pass walks the columns in pieces of ``width`` lanes."""

    @property
    def width(self) -> int:
        """Lanes of a piece."""
        return self.mapping.width if self.mapping.lanes is Lanes.COLUMNS else 1

    def slot(self) -> list[Expr]:
        assert self.eval.column is not None
        return [self.eval.column]

    def emit(self, parallel: bool) -> None:
        """Tasks of ``rows_per_task`` rows."""
        rows, each = self.domain.rows, self.mapping.rows_per_task
        with times("parallel" if parallel else "serial", ceildiv(rows, each), "task") as task:
            for p in self.sched.passes:
                self.new_tiles(p)
            first = task * B.i64(each)
            exact = isinstance(rows, int) and rows % each == 0
            count = B.i64(each) if exact else extent_min(each, as_expr(rows) - first)
            with B.loop("serial", each if exact else count, "r") as r:
                self.row(first + r)

    def row(self, row: Expr) -> None:
        """All passes of a row."""
        self.ready = set()
        self.lanes = None
        self.eval = self.evaluator(row)
        for p in self.sched.passes:
            self._pass(p)
        self.store_row_outputs()

    def _pass(self, p: Pass) -> None:
        for key in p.row_values:
            self.eval.bind_row(key)
        fresh = self.fresh_tiles(p)
        accumulators = self.accumulators(p)
        self.walk(p.columns, self.body(p, accumulators, fresh))
        self.ready |= set(fresh)
        for op, acc in zip(p.reduces, accumulators):
            total = from_held(fold(op, acc, self.width), accumulator_dtype(op))
            self.eval.set_row_value((op, self.al.row_point), total)

    def accumulators(self, p: Pass) -> list[Buffer]:
        """An accumulator of one element a lane for each of the pass's reductions, at its identity."""
        found = []
        for op in p.reduces:
            acc = accumulator(op, self.width, "acc")
            LaneWriter(self.width).fill(acc, to_held(identity(op)))
            found.append(acc)
        return found

    def body(self, p: Pass, accumulators: list[Buffer], fresh: list) -> Body:
        """What a pass does at a piece."""

        def work(base: Expr, lanes: LaneWriter, mask: Expr | None) -> None:
            self.lanes = lanes
            with self.piece(lanes.width, base + lanes.lane):
                self.evaluate(p, fresh)
                self.accumulate(p, accumulators, lanes.lane, mask)
            self.lanes = None

        return work

    def walk(self, columns: Extent, body: Body) -> None:
        """Visit all columns, segment by segment."""
        segment = self.mapping.segment(columns)
        if segment is columns or (isinstance(segment, int) and segment == columns):
            self.segment(B.i64(0), segment, body)
            return
        assert isinstance(columns, int) and isinstance(segment, int)
        with B.loop("serial", columns // segment, "outer") as outer:
            self.segment(outer * B.i64(segment), segment, body)

    def segment(self, base: Expr, segment: Extent, body: Body) -> None:
        """Visit a segment: whole pieces, then what is left."""
        width = self.width
        pieces = segment // width if isinstance(segment, int) else tir.floordiv(as_expr(segment), B.i64(width))
        if not (isinstance(pieces, int) and pieces == 0):
            with times("serial", pieces, "piece") as piece:
                body(base + piece * B.i64(width), LaneWriter(width), None)
        self.tail(base, segment, body)

    def tail(self, base: Expr, segment: Extent, body: Body) -> None:
        """The columns after the last whole piece: a piece that overlaps it, else column by column."""
        width = self.width
        if width == 1 or (isinstance(segment, int) and segment % width == 0):
            return
        if isinstance(segment, int) and segment > width:
            lanes = LaneWriter(width)
            body(base + B.i64(segment - width), lanes, lanes.lane >= B.i64(width - segment % width))
            return
        if isinstance(segment, int):
            left: int | Expr = segment % width
            start: Expr = base + B.i64(segment - segment % width)
        else:
            left = tir.floormod(as_expr(segment), B.i64(width))
            start = base + as_expr(segment) - left
        with B.loop("serial", left, "rest") as rest:
            body(start + rest, LaneWriter(1), None)


class SplitEmitter(ColumnEmitter):
    """Few long rows, and flat domains: every pass is a parallel loop over pieces of the columns."""

    def emit(self, parallel: bool) -> None:
        self.parallel = parallel
        for p in self.sched.passes:
            if any(k in self.sched.kept_values for k in p.values):
                self.new_tiles(p)
        if self.domain.flat:
            self.row(B.i64(0))
            return
        with times("serial", self.domain.rows, "row") as row:
            self.row(row)

    def _pass(self, p: Pass) -> None:
        for key in p.row_values:
            self.eval.bind_row(key)
        fresh = self.fresh_tiles(p)
        columns, segment = p.columns, self.mapping.segment(p.columns)
        whole = segment is columns or (isinstance(segment, int) and segment == columns)
        outer = 1 if whole else quotient_of(columns, segment)
        each = self.mapping.elements_per_task
        if whole or (isinstance(segment, int) and segment > 2 * each):
            tasks = self._within(p, outer, segment, fresh, each)
        else:
            assert isinstance(segment, int)
            tasks = self._across(p, outer, segment, fresh, max(1, each // segment))
        self.ready |= set(fresh)
        self._combine(p, tasks)

    def _tasks(self, count: Extent):  # type: ignore[no-untyped-def]
        return times("parallel" if self.parallel else "serial", count, "task")

    def _across(self, p: Pass, outer: Extent, segment: int, fresh: list, each: int) -> Extent:
        """Tasks of ``each`` segments."""
        tasks = ceildiv(outer, each)
        partials = self._partials(p, tasks)
        with self._tasks(tasks) as task:
            accumulators = self.accumulators(p)
            first = task * B.i64(each)
            exact = isinstance(outer, int) and outer % each == 0
            count = each if exact else extent_min(each, as_expr(outer) - first)
            with B.loop("serial", count, "outer") as o:
                self.segment((first + o) * B.i64(segment), segment, self.body(p, accumulators, fresh))
            self._finish(p, accumulators, partials, task)
        return tasks

    def _within(self, p: Pass, outer: Extent, segment: Extent, fresh: list, each: int) -> Extent:
        """Tasks of ``each`` columns inside a segment."""
        width = self.width
        per_task = max(1, each // width)
        pieces = segment // width if isinstance(segment, int) else tir.floordiv(as_expr(segment), B.i64(width))
        chunks = ceildiv(pieces, per_task)
        if not isinstance(chunks, int):
            chunks = tir.max(chunks, B.i64(1))
        elif chunks == 0:
            chunks = 1
        tasks: Extent = outer * chunks if isinstance(outer, int) and isinstance(chunks, int) else (
            as_expr(outer) * as_expr(chunks)
        )  # fmt: skip
        partials = self._partials(p, tasks)
        body_of = self.body
        with self._tasks(tasks) as task:
            accumulators = self.accumulators(p)
            one = isinstance(outer, int) and outer == 1
            chunk = task if one else tir.floormod(task, as_expr(chunks))
            base = B.i64(0) if one else tir.floordiv(task, as_expr(chunks)) * as_expr(segment)
            body = body_of(p, accumulators, fresh)
            first = chunk * B.i64(per_task)
            exact = isinstance(pieces, int) and pieces % per_task == 0
            count = per_task if exact else extent_min(per_task, as_expr(pieces) - first)
            with B.loop("serial", count, "piece") as piece:
                body(base + (first + piece) * B.i64(width), LaneWriter(width), None)
            if not (isinstance(segment, int) and segment % width == 0):
                single = isinstance(chunks, int) and chunks == 1
                with B.when(None if single else tir.EQ(chunk, as_expr(chunks) - B.i64(1))):
                    self.tail(base, segment, body)
            self._finish(p, accumulators, partials, task)
        return tasks

    def _partials(self, p: Pass, tasks: Extent) -> list[Buffer]:
        self.partials = []
        for op in p.reduces:
            assert isinstance(tasks, int)
            self.partials.append(accumulator(op, tasks, "partial", scope="global"))
        return self.partials

    def _finish(self, p: Pass, accumulators: list[Buffer], partials: list[Buffer], task: Expr) -> None:
        for op, acc, partial in zip(p.reduces, accumulators, partials):
            B.store(partial, fold(op, acc, self.width), [task])

    def _combine(self, p: Pass, tasks: Extent) -> None:
        for op, partial in zip(p.reduces, self.partials):
            whole = accumulator(op, 1, "whole")
            B.store(whole, to_held(identity(op)), [B.i64(0)])
            with times("serial", tasks, "task") as task:
                B.store(whole, merged(op, B.fetch(whole, 0), compat.load(partial, [task])), [B.i64(0)])
            value = from_held(B.fetch(whole, 0), accumulator_dtype(op))
            self.eval.set_row_value((op, self.al.row_point), value)


def quotient_of(total: Extent, part: Extent) -> Extent:
    """``total / part``, known to be exact."""
    if isinstance(total, int) and isinstance(part, int):
        return total // part
    return tir.floordiv(as_expr(total), as_expr(part))
