# SPDX-License-Identifier: Apache-2.0
"""Lanes along the columns: one row after the other, and tasks take blocks of rows."""

from __future__ import annotations

from collections.abc import Callable

from ... import compat
from ...compat import Buffer, Expr, T, tir
from ...graph.extent import Extent, as_expr, ceildiv, is_multiple, is_number, product, total
from ...plan.cpu.segments import Segment
from ...plan.cpu.tile import Lanes
from ...plan.iteration.alignment import Key
from ...plan.iteration.loops import RowLoop
from .. import builder as B
from ..combine import accumulator_dtype, identity
from .base import Computed, CpuEmitter, accumulator, extent_min, fold, merged
from .index_context import Coordinate, IndexContext
from .lanes import LaneWriter, from_held, to_held
from .tasks import times

Part = tuple[int, Extent]
Body = Callable[[Part, Expr, Expr, LaneWriter, "Expr | None"], None]
"""A function of a slice, a segment, a position in it, lanes, and those that count, which emits the work there."""


class ColumnEmitter(CpuEmitter):
    """Emits rows one by one. Each pass walks the columns in pieces of ``width`` lanes."""

    @property
    def width(self) -> int:
        """Lanes of a piece."""
        return self.mapping.width if self.mapping.lanes is Lanes.COLUMNS else 1

    def slot(self) -> list[Expr]:
        assert self.eval.column is not None
        return [self.eval.column]

    def emit(self) -> None:
        """Emit tasks of ``rows_per_task`` rows, or of fewer if rows of symbolic length prove long at run time."""
        rows, each = self.domain.rows, self._rows_of_task()
        with self.tasks(ceildiv(rows, each)) as task:
            for p in self.sched.passes:
                self.new_tiles(p)
            first = task * as_expr(each)
            count = count_of(rows, each, first)
            self.before_rows(first, count)
            with times("serial", count, "r") as r:
                self.row(first + r)

    def before_rows(self, first: Expr, count: Extent) -> None:
        """Emit work on all rows of a task before the rows one by one."""

    def _rows_of_task(self) -> Extent:
        each, points = self.mapping.rows_per_task, self.mapping.task_points
        if not points or self.mapping.parallel is False or each == 1:
            return each
        columns = total(e for e in self.sched.spaces if not isinstance(e, int))
        fitting = tir.floordiv(B.i64(points), tir.max(as_expr(columns), B.i64(1)))
        return B.bind(tir.max(tir.min(fitting, B.i64(each)), B.i64(1)), "rows_of_task")

    def row(self, row: Expr) -> None:
        """Emit all passes of a row."""
        self.ready = set()
        self.lanes = None
        self.eval = self.evaluator(row)
        for p in self.sched.passes:
            self._pass(p)
        self.store_row_outputs()

    def _pass(self, p: RowLoop) -> None:
        for key in p.row_values:
            self.eval.bind_row(key)
        fresh = self.fresh_tiles(p)
        accumulators = self.accumulators(p)
        self.walk(p.columns, self.body(p, accumulators, fresh))
        self.ready |= set(fresh)
        for op, acc in zip(p.reduces, accumulators, strict=True):
            total = from_held(fold(op, acc, self.width), accumulator_dtype(op))
            self.eval.set_row_value((op, self.al.row_point), total)

    def accumulators(self, p: RowLoop) -> list[Buffer]:
        """Return an accumulator at its identity for each of the pass's reductions, with one element a lane."""
        buffers = []
        for op in p.reduces:
            acc = accumulator(op, self.width, "acc")
            LaneWriter(self.width).fill(acc, to_held(identity(op)))
            buffers.append(acc)
        return buffers

    def body(self, p: RowLoop, accumulators: list[Buffer], fresh: list[Key], together: Extent = 1) -> Body:
        """Return the function that emits a pass's work on one piece, at its place in ``together`` segments.

        Values that these segments share are computed once for all of them.
        """
        row = Coordinate("row", self.domain.rows, self.domain.rows)
        row.move(B.i64(0), self.eval.row)
        segment = self.mapping.segment(p.columns)
        vectors = self.width if segment.alike and segment.alike % self.width == 0 else 1
        column = Coordinate("col", p.columns, segment.extent, vectors)

        def work(part: Part, outer: Expr, inner: Expr, lanes: LaneWriter, mask: Expr | None) -> None:
            self.lanes = lanes
            frame = IndexContext(self.domain, row, column, part)

            def moved(outer: Expr) -> Expr:
                if vectors == 1:
                    return column.move(outer, inner + lanes.lane)
                # whole vectors leave no remainder
                number = frame.analyzer.simplify(tir.floordiv(inner, B.i64(vectors)))
                return column.move(outer, number, lanes.lane)

            shared = Computed() if is_number(together, 1) else self._shared(p, frame, moved(outer))
            with times("serial", together, "outer") as o:
                with self.piece(frame, moved(outer + o), shared):
                    self.evaluate(p, fresh)
                    self.accumulate(p, accumulators, lanes.lane, mask)
            self.lanes = None

        return work

    def _shared(self, p: RowLoop, frame: IndexContext, position: Expr) -> Computed:
        """Compute the values of a pass that are the same at a position of all segments of a block."""
        reduces, together = set(p.reduces), self.mapping.segment(p.columns).together
        with self.piece(frame, position):
            for key in p.values:
                indices = self.domain.output_indices(*key)
                if key[0] not in reduces and all(frame.is_shared(i, together) for i in indices):
                    self.eval.value(key)
            return Computed(self.eval.column_cache, self.loaded)

    def walk(self, columns: Extent, body: Body) -> None:
        """Visit all columns, segment by segment."""
        segment = self.mapping.segment(columns)
        with times("serial", quotient_of(columns, segment.extent), "outer") as outer:
            for part in segment.parts:
                self.part(outer, part, body)

    def part(self, outer: Expr, part: Part, body: Body) -> None:
        """Visit a slice of a segment: whole pieces, then the remainder."""
        start, extent = part
        width = self.lanes_for(extent)
        if not is_number(self.pieces(extent), 0):
            with times("serial", self.pieces(extent), "piece") as piece:
                body(part, outer, B.i64(start) + piece * B.i64(width), LaneWriter(width, self.signed), None)
        self.tail(outer, part, body)

    def lanes_for(self, extent: Extent) -> int:
        """Return the lanes of a piece of a slice. Short slices take narrower vectors."""
        if not isinstance(extent, int) or extent >= self.width:
            return self.width
        return next((w for w in (16, 8) if w <= extent and w <= self.width), 1)

    def pieces(self, extent: Extent) -> Extent:
        """Return the number of whole pieces in a slice."""
        width = self.lanes_for(extent)
        return extent // width if isinstance(extent, int) else tir.floordiv(as_expr(extent), B.i64(width))

    def tail(self, outer: Expr, part: Part, body: Body) -> None:
        """Visit the columns after the last whole piece: in one piece that overlaps it, or column by column."""
        start, extent = part
        width = self.lanes_for(extent)
        if is_multiple(extent, width):
            return
        if isinstance(extent, int):
            lanes = LaneWriter(width, self.signed)
            fresh = lanes.lane >= B.i64(width - extent % width)
            body(part, outer, B.i64(start + extent - width), lanes, fresh)
            return
        self._symbolic_tail(outer, part, body, width)

    def _symbolic_tail(self, outer: Expr, part: Part, body: Body, width: int) -> None:
        """Visit the columns after the last whole piece of a slice of symbolic extent.

        If every row or segment has such a remainder, it is visited in pieces of the shortest vectors. The last of
        them overlaps the one before. Single columns remain if no whole vector fits.
        """
        start, extent = part[0], as_expr(part[1])
        pieces = tir.floordiv(extent, B.i64(width))
        whole = as_expr(B.number(pieces, "pieces")) * B.i64(width)  # visibly a multiple of the width
        left = extent - whole
        narrow = self.mapping.tail_width

        def one_by_one() -> None:
            with times("serial", left, "rest") as rest:
                body(part, outer, B.i64(start) + whole + rest, LaneWriter(1, self.signed), None)

        if width <= narrow or (self.domain.flat and compat.int_value(outer) == 0):
            one_by_one()
            return
        with T.If(extent < B.i64(narrow)):
            with T.Then():
                one_by_one()
            with T.Else():
                with times("serial", ceildiv(left, narrow), "piece") as piece:
                    wanted = B.bind(whole + piece * B.i64(narrow), "wanted")
                    first = B.bind(tir.min(wanted, extent - B.i64(narrow)), "first")
                    lanes = LaneWriter(narrow, self.signed)
                    fresh = lanes.lane >= wanted - first
                    body(part, outer, B.i64(start) + first, lanes, fresh)


class SplitEmitter(ColumnEmitter):
    """Emits few long rows, and flat domains: every pass is a parallel loop over pieces of the columns."""

    def emit(self) -> None:
        for p in self.sched.passes:
            if any(k in self.sched.kept_values for k in p.values):
                self.new_tiles(p)
        if self.domain.flat:
            self.row(B.i64(0))
            return
        with times("serial", self.domain.rows, "row") as row:
            self.row(row)

    def _pass(self, p: RowLoop) -> None:
        for key in p.row_values:
            self.eval.bind_row(key)
        fresh = self.fresh_tiles(p)
        segment, each = self.mapping.segment(p.columns), self.mapping.elements_per_task
        outer = quotient_of(p.columns, segment.extent)
        self.partials: list[tuple[list[Buffer], Extent]] = []
        if isinstance(segment.extent, int) and segment.extent <= 2 * each and not is_number(outer, 1):
            self._across(p, outer, segment, fresh, max(1, each // segment.extent))
        else:
            for part in segment.parts:
                self._within(p, outer, part, fresh)
        self.ready |= set(fresh)
        self._combine(p)

    def _across(self, p: RowLoop, outer: Extent, segment: Segment, fresh: list[Key], each: int) -> None:
        """Emit tasks of ``each`` segments, in blocks whose accesses share cache lines if some are strided."""
        block = 1 if p.reduces else segment.together
        each = -(-each // block) * block
        partials = self._partials(p, ceildiv(outer, each))
        with self.tasks(ceildiv(outer, each)) as task:
            accumulators = self.accumulators(p)
            first = task * B.i64(each)
            count = count_of(outer, each, first)
            with times("serial", ceildiv(count, block), "block") as index:
                base = first + index * B.i64(block)
                inside = 1 if block == 1 else count_of(count, block, index * B.i64(block))
                for part in segment.parts:
                    self.part(base, part, self.body(p, accumulators, fresh, inside))
            self._finish(p, accumulators, partials, task)

    def _within(self, p: RowLoop, outer: Extent, part: Part, fresh: list[Key]) -> None:
        """Emit tasks of ``elements_per_task`` columns inside a slice of a segment, or of several that share values."""
        start, extent = part
        segment = self.mapping.segment(p.columns)
        block = segment.together if segment.shares and not p.reduces else 1
        block = min(block, outer) if isinstance(outer, int) else block
        width = self.lanes_for(extent)
        each = max(1, self.mapping.elements_per_task // (width * block))
        pieces = self.pieces(extent)
        chunks = ceildiv(pieces, each)
        chunks = max(chunks, 1) if isinstance(chunks, int) else tir.max(chunks, B.i64(1))
        tasks = product([ceildiv(outer, block), chunks])
        partials = self._partials(p, tasks)
        with self.tasks(tasks) as task:
            accumulators = self.accumulators(p)
            one = is_number(outer, block)
            chunk = task if one else _position(tir.floormod(task, as_expr(chunks)), chunks, "chunk")
            base = B.i64(0) if one else _position(tir.floordiv(task, as_expr(chunks)), chunks, "base")
            base = base if block == 1 else base * B.i64(block)
            body = self.body(p, accumulators, fresh, 1 if block == 1 else count_of(outer, block, base))
            first = chunk * B.i64(each)
            with times("serial", count_of(pieces, each, first), "piece") as piece:
                inner = B.i64(start) + (first + piece) * B.i64(width)
                body(part, base, inner, LaneWriter(width, self.signed), None)
            if not is_multiple(extent, width):
                last = None if is_number(chunks, 1) else tir.EQ(chunk, as_expr(chunks) - B.i64(1))
                with B.when(last):
                    self.tail(base, part, body)
            self._finish(p, accumulators, partials, task)

    def _partials(self, p: RowLoop, tasks: Extent) -> list[Buffer]:
        """Allocate a buffer for the tasks' partial results of each of the pass's reductions."""
        buffers = []
        for op in p.reduces:
            buffers.append(accumulator(op, tasks, "partial"))
        self.partials.append((buffers, tasks))
        return buffers

    def _finish(self, p: RowLoop, accumulators: list[Buffer], partials: list[Buffer], task: Expr) -> None:
        for op, acc, partial in zip(p.reduces, accumulators, partials, strict=True):
            B.store(partial, fold(op, acc, self.width), [task])

    def _combine(self, p: RowLoop) -> None:
        """Combine the partial results of all tasks into the row's values."""
        for position, op in enumerate(p.reduces):
            whole = accumulator(op, 1, "whole")
            B.store(whole, to_held(identity(op)), [B.i64(0)])
            for buffers, tasks in self.partials:
                with times("serial", tasks, "task") as task:
                    value = merged(op, B.fetch(whole, 0), compat.load(buffers[position], [task]))
                    B.store(whole, value, [B.i64(0)])
            value = from_held(B.fetch(whole, 0), accumulator_dtype(op))
            self.eval.set_row_value((op, self.al.row_point), value)


def _position(value: Expr, chunks: Extent, name: str) -> Expr:
    """Return the result of a division by a number of chunks, bound to a name if that number is symbolic."""
    return value if isinstance(chunks, int) else as_expr(B.number(value, name))


def count_of(whole: Extent, each: Extent, first: Expr) -> Extent:
    """Return the size of the group that starts at ``first``: at most ``each`` of ``whole`` elements."""
    if not isinstance(each, int):
        return tir.min(each, as_expr(whole) - first)
    if isinstance(whole, int) and (whole <= each or whole % each == 0):
        return min(whole, each)
    return each if each == 1 and isinstance(whole, int) else extent_min(each, as_expr(whole) - first)


def quotient_of(whole: Extent, part: Extent) -> Extent:
    """Return ``whole / part``, known to be exact."""
    if part is whole:
        return 1
    if isinstance(whole, int) and isinstance(part, int):
        return whole // part
    return tir.floordiv(as_expr(whole), as_expr(part))
