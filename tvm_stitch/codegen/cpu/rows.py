# SPDX-License-Identifier: Apache-2.0
"""Lanes over neighbouring rows: strips of rows walk down the columns together, a lane for each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ... import compat
from ...compat import Buffer, Expr, tir
from ...graph.extent import as_expr, ceildiv
from ...plan.iteration.alignment import Key
from ...plan.iteration.loops import RowLoop
from .. import builder as B
from ..combine import identity
from ..evaluator import compute_dtype
from .base import CpuEmitter, accumulator, extent_min
from .columns import count_of, quotient_of
from .index_context import Coordinate, IndexContext
from .lanes import LaneWriter, from_held, held, to_held
from .tasks import times


class RowEmitter(CpuEmitter):
    """Emits strips of ``strip`` rows, in pieces of ``width`` lanes. Row values are buffers of one element a row."""

    def emit(self) -> None:
        m = self.mapping
        segment = m.row_segment
        assert isinstance(segment, int) and segment >= m.width
        self.segment, self.width, self.strip = segment, m.width, m.strip
        self.aligned = segment % m.width == 0
        self.row = Coordinate("row", self.domain.rows, segment, m.width if self.aligned else 1)
        per_segment = -(-segment // m.strip)
        outer = quotient_of(self.domain.rows, segment)
        total = outer * per_segment if isinstance(outer, int) else as_expr(outer) * B.i64(per_segment)
        each = m.rows_per_task
        with self.tasks(ceildiv(total, each)) as task:
            for p in self.sched.passes:
                self.new_tiles(p, self.strip)
            first = task * B.i64(each)
            with times("serial", count_of(total, each, first), "s") as s:
                index = B.bind(first + s, "strip") if not (each == 1 and per_segment == 1) else first + s
                if self.row.outer is None:
                    self._strip(B.i64(0), index)
                else:
                    each_segment = B.i64(per_segment)
                    self._strip(tir.floordiv(index, each_segment), tir.floormod(index, each_segment))

    def _strip(self, outer: Expr, strip: Expr) -> None:
        """Emit all passes of the rows of a strip of a segment."""
        self.ready = set()
        self.row_buffers: dict[Key, Buffer] = {}
        self.outer, self.first = outer, strip
        whole = -(-self.segment // self.width)
        per_strip = self.strip // self.width
        self.pieces = per_strip if whole % per_strip == 0 else extent_min(
            per_strip, B.i64(whole) - strip * B.i64(per_strip)
        )  # fmt: skip
        for p in self.sched.passes:
            self._pass(p)
        if self.sched.row_outputs or self.sched.final_values:
            with self._each_piece():
                self.store_row_outputs()

    @contextmanager
    def _each_piece(self) -> Iterator[None]:
        """Open a loop over the pieces of the current strip."""
        with times("serial", self.pieces, "piece") as piece:
            self.enter(piece)
            yield
            self.lanes = None

    def enter(self, piece: Expr) -> None:
        """Move to a piece of the strip."""
        self.at = piece * B.i64(self.width)
        self.lanes = LaneWriter(self.width, self.signed)
        if self.aligned:
            number = self.first * B.i64(self.strip // self.width) + piece
            row = self.row.move(self.outer, number, self.lanes.lane)
        else:  # the last piece overlaps the one before
            start = tir.min(self.first * B.i64(self.strip) + self.at, B.i64(self.segment - self.width))
            row = self.row.move(self.outer, start + self.lanes.lane)
        self.eval = self.evaluator(row)
        self.eval.frame = self.lanes.frame = IndexContext(self.domain, self.row, None)
        for key, buffer in self.row_buffers.items():
            value = compat.load(buffer, [self.at + self.lanes.lane])
            self.eval.set_row_value(key, from_held(value, compute_dtype(key[0].output.dtype)))

    def slot(self) -> list[Expr]:
        assert self.eval.column is not None and self.lanes is not None
        return [self.eval.column * B.i64(self.strip) + self.at + self.lanes.lane]

    def _pass(self, p: RowLoop) -> None:
        self._row_values(p.row_values)
        fresh = self.fresh_tiles(p)
        accumulators = []
        for op in p.reduces:
            acc = accumulator(op, self.strip, "acc")
            with times("serial", self.pieces, "piece") as piece:
                LaneWriter(self.width).fill(acc, to_held(identity(op)), piece * B.i64(self.width))
            accumulators.append(acc)
        columns = p.columns
        column = Coordinate("col", columns, columns)
        block = self.mapping.columns_together[columns]
        with times("serial", ceildiv(columns, block), "block") as outer:
            left = count_of(columns, block, outer * B.i64(block))
            with self._each_piece():
                with times("serial", left, "col") as inner:
                    frame = IndexContext(self.domain, self.row, column)
                    with self.piece(frame, column.move(B.i64(0), outer * B.i64(block) + inner)) as lanes:
                        self.evaluate(p, fresh)
                        self.accumulate(p, accumulators, self.at + lanes.lane)
        self.ready |= set(fresh)
        for op, acc in zip(p.reduces, accumulators, strict=True):
            self.row_buffers[(op, self.al.row_point)] = acc

    def _row_values(self, keys: Sequence[Key]) -> None:
        """Evaluate values that have one element a row into buffers."""
        wanted = [k for k in keys if k not in self.row_buffers]
        if not wanted:
            return
        buffers = {}
        for key in wanted:
            dtype = held(compute_dtype(key[0].output.dtype))
            buffers[key] = B.stack([self.strip], dtype, key[0].output.name)
        with self._each_piece():
            assert self.lanes is not None
            for key in wanted:
                place = [self.at + self.lanes.lane]
                self.lanes.store(buffers[key], to_held(self.eval.value(key)), place)
                value = compat.load(buffers[key], place)  # for the values after it
                self.eval.set_row_value(key, from_held(value, compute_dtype(key[0].output.dtype)))
        self.row_buffers.update(buffers)
