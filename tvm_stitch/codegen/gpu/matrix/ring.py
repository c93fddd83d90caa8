# SPDX-License-Identifier: Apache-2.0
"""Copy weights of later steps to a ring in shared memory while a step is multiplied (``plan.rows.weight_ring``).

The lanes of a row copy 16 neighbouring bytes each, so that together they read whole sectors of memory. A copy of half a
sector reads all of it. Each lane multiplies weights that lanes of its own warp have copied. The positions of a step's
pieces are apart by the threads of a block. Those of odd pieces are exchanged in pairs, so that lanes use all banks.

Each step is one group of copies, and a step past the last one is an empty group. A lane that waits until only the
youngest groups are on their way therefore has the current step.
"""

from __future__ import annotations

from ....compat import Buffer, Expr, T, tir
from ....graph.dtype import item_bytes
from ... import builder as B
from .functions import copy_weights, take_weights
from .weights import LaneRows, WeightEmitter

COPY_WORDS = 4


class RingEmitter(WeightEmitter):
    """Emits the copies of a stage's weights, and their loads from shared memory."""

    def load_ahead(self) -> None:
        """Begin to copy the first steps, before the barrier and the factors of the products."""
        if not self.units.ring:
            super().load_ahead()
            return
        with self._ahead() as worker:
            self._begin_task(worker, min(self.stage.tasks, self.stage.stride))

    def begin_next_task(self) -> None:
        """Begin to copy the first steps of the block's next task, if there is one."""
        if self.stage.tasks > self.stage.stride:
            _meet_warp()  # all lanes have read the last steps
            before = self.first_row
            self._begin_task(self.block + B.i64(self.stage.stride), self.stage.tasks)
            self.first_row = before

    def _begin_task(self, group: Expr, tasks: int) -> None:
        """Begin to copy the first steps of a task, if it is among so many."""
        self.first_row = group * B.i64(self.mapping.rows_per_block)
        rows, chunk = self._lane_rows()
        with B.when(group < B.i64(tasks)):
            for step in range(self.units.ring - 1):
                self._copy_step(rows, chunk, B.i64(step))

    def copy_later(self, rows: list[LaneRows], first_chunk: Expr, step: Expr) -> None:
        """Begin to copy the last step that the ring has room for, and wait for the current one."""
        _meet_warp()  # all lanes have read the step whose memory this takes
        self._copy_step(rows, first_chunk, step + B.i64(self.units.ring - 1))
        B.evaluate(T.ptx.cp.async_.wait_group(self.units.ring - 1))
        _meet_warp()

    def _copy_step(self, rows: list[LaneRows], first_chunk: Expr, step: Expr) -> None:
        """Begin to copy a step's weights, if there is such a step, as one group."""
        u = self.units
        count = u.lane_bytes // 4
        with B.when(step < B.i64(u.steps)):
            for c in range(u.chunks):
                chunk = first_chunk + step * B.i64(u.chunks) + B.i64(c)
                inside = self._inside(chunk)
                size = 16 if inside is None else tir.Select(inside, B.i64(16), B.i64(0))
                for half, of in enumerate(rows):
                    memory = self._words(of)
                    row = of.words - self.quarter + chunk * B.i64(u.row_lanes)  # in lanes
                    for v in range(count // COPY_WORDS):
                        piece = B.i64(v * u.row_lanes) + self.quarter
                        to = self._address(step, (2 * c + half) * (count // COPY_WORDS), piece)
                        source = tir.address_of(
                            B.fetch(memory, row * B.i64(count) + piece * B.i64(COPY_WORDS))
                        )
                        B.evaluate(copy_weights(to, source, size))
        B.evaluate(T.ptx.cp.async_.commit_group())

    def take_step(self, step: Expr, words: Buffer) -> None:
        """Load the weights of a step that has arrived."""
        u = self.units
        each = u.lane_bytes // (4 * COPY_WORDS)  # pieces of a lane
        for number in range(2 * u.chunks):
            for v in range(each):
                to = tir.address_of(B.fetch(words, (number * each + v) * COPY_WORDS))
                piece = self.quarter * B.i64(each) + B.i64(v)
                B.evaluate(take_weights(to, self._address(step, number * each, piece)))

    def _address(self, step: Expr, first: int, piece: Expr) -> Expr:
        """Return the address of a piece of a row's chunk, which begins with piece number ``first`` of the step."""
        u, threads, layout = self.units, self.mapping.block, self.whole.ring
        assert self.ring is not None and layout is not None, "the plan has no ring"
        pieces, of_piece = u.step_bytes // (4 * COPY_WORDS), 4 * COPY_WORDS // item_bytes(layout.dtype)
        lanes = B.i64(u.row_lanes)
        turn = tir.floordiv(piece, lanes)
        copier = self.thread - self.quarter + ((piece & (lanes - B.i64(1))) ^ (turn & B.i64(1)))
        position = tir.floormod(step, B.i64(u.ring)) * B.i64(pieces) + B.i64(first) + turn
        at = (position * B.i64(threads) + copier) * B.i64(of_piece)
        return tir.address_of(B.fetch(self.ring, at + B.i64(layout.start // item_bytes(layout.dtype))))


def _meet_warp() -> None:
    """Wait for the lanes of the warp, so that they see what each of them has copied."""
    B.evaluate(tir.call_extern("int32", "__syncwarp"))
