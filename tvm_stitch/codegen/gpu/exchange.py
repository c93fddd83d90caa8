# SPDX-License-Identifier: Apache-2.0
"""Combine the partial results of the blocks that share a row: through a cluster's shared memory, or a grid barrier.

Every block folds the segments' partial results in the same order, so that all of them hold the same value, whatever
the order in which they arrive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ... import compat
from ...compat import Buffer, Expr, T, tir
from ...graph.dtype import carried_dtype, item_bytes
from ...graph.ir import Operator
from ...plan.gpu.mapping import CrossBlockReduction
from ...plan.gpu.split import partial_scratch
from ...plan.kernel import Stage
from .. import builder as B
from ..combine import accumulator_dtype, combine, identity, in_order
from ..evaluator import convert
from .grid_barrier import grid_barrier
from .reduce import shuffle_reduce

WARP = 32


class Exchanger(Protocol):
    """Folds over the segments of a row."""

    def meet(self) -> None:
        """Wait until the row's blocks are ready for an exchange; called before the first ``fold``, or more often.

        No block barrier stands between making the exchange and this.
        """

    def fold(self, ops: Sequence[Operator], totals: Sequence[Expr]) -> list[Expr]:
        """The results of reductions of which each block's part is known to all of its threads.

        Every thread of every block that shares the row must come here, outside any condition.
        """


def make_exchange(
    stage: Stage, scratch: Mapping[str, Buffer], row: Expr, segment: Expr, slot: Expr, lane: Expr
) -> Exchanger | None:
    """What the plan's mapping asks for; None where a row has one block.

    Args:
        stage: the only one of a plan.
        scratch: the plan's scratch by name.
        row, segment: the row of the thread, and which of its segments the block has.
        slot, lane: the row's place in the block, and the thread's in the row.
    """
    m = stage.row_mapping
    if m.exchange is CrossBlockReduction.NONE:
        return None
    reduces = [op for p in stage.schedule.passes for op in p.reduces]
    if m.exchange is CrossBlockReduction.CLUSTER:
        return ClusterExchange(reduces, m.rows_per_block, m.row_splits, segment, slot, lane)
    names = {op: s.name for op, s in partial_scratch(stage.schedule, stage.alignment.domain.rows, m).items()}
    buffers = {op: scratch[name] for op, name in names.items()}
    return GridExchange(buffers, scratch, m.row_splits, row, segment, lane)


class ClusterExchange:
    """Blocks of a cluster push their partial results into each other's shared memory.

    A slot for each row, reduction and segment: a slot is written once, and one cluster barrier between writing and
    reading is enough. Before the first push blocks wait until all of the cluster have started, which they say at once;
    after the last barrier they read their own memory only, and may end whenever they like.

    Slots are written and read by instructions that TVM does not look into: it would place block barriers of its own
    around them. Its storage planning sees the buffer in use from here to the last exchange.
    """

    def __init__(
        self, ops: Sequence[Operator], rows: int, segments: int, rank: Expr, slot: Expr, lane: Expr
    ):  # fmt: skip
        self.segments, self.rank, self.lane = segments, rank, lane
        self.slot = slot if rows > 1 else None
        self.place = {op: i for i, op in enumerate(ops)}
        self.bits = 8 * max(item_bytes(carried_dtype(op.output.dtype)) for op in ops)
        self.slots = B.local([rows, len(ops), segments], f"uint{self.bits}", "segments", scope="shared")
        self.met = False
        B.cell(self._own(), "slots_of_this_block")  # in use from the start on: others write here unseen
        B.evaluate(T.ptx.barrier.cluster.arrive.relaxed.aligned())

    def meet(self) -> None:
        """Wait until all blocks of the cluster have started."""
        if not self.met:
            B.evaluate(T.ptx.barrier.cluster.wait.acquire.aligned())
            self.met = True

    def fold(self, ops: Sequence[Operator], totals: Sequence[Expr]) -> list[Expr]:
        """The results, once all blocks of the cluster are here."""
        self.meet()
        words = [B.cell(self._to_word(op, t), "word") for op, t in zip(ops, totals)]
        with B.when(self.lane < B.i64(self.segments)):
            remote = B.local([1], "uint32", "remote")
            B.evaluate(T.ptx.mapa.shared__cluster.u32(remote[0], self._own(), tir.Cast("uint32", self.lane)))
            for op, word in zip(ops, words):
                address = B.fetch(remote, 0) + self._offset(op, self.rank)
                B.evaluate(getattr(T.ptx.st.shared__cluster, f"b{self.bits}")(address, word))
        B.evaluate(T.ptx.barrier.cluster.arrive.release.aligned())
        B.evaluate(T.ptx.barrier.cluster.wait.acquire.aligned())
        parts = ((op, [self._part(op, rank) for rank in range(self.segments)]) for op in ops)
        return [B.cell(in_order(op, found), "whole") for op, found in parts]

    def _part(self, op: Operator, rank: int) -> Expr:
        word = B.local([1], f"uint{self.bits}", "word")
        address = self._own() + self._offset(op, B.i64(rank))
        B.evaluate(getattr(T.ptx.ld.shared, f"b{self.bits}")(word[0], address))
        return B.cell(self._from_word(B.fetch(word, 0), op), "part")

    def _own(self) -> Expr:
        return T.cuda.cvta_generic_to_shared(self.slots.data)

    def _offset(self, op: Operator, rank: Expr) -> Expr:
        size = self.bits // 8
        within = compat.const(self.place[op] * self.segments * size, "uint32")
        within += tir.Cast("uint32", rank) * compat.const(size, "uint32")
        if self.slot is None:
            return within
        of_row = compat.const(len(self.place) * self.segments * size, "uint32")
        return tir.Cast("uint32", self.slot) * of_row + within

    def _to_word(self, op: Operator, value: Expr) -> Expr:
        moved = carried_dtype(op.output.dtype)
        word = compat.intrinsic(f"uint{8 * item_bytes(moved)}", "reinterpret", convert(value, moved))
        return convert(word, f"uint{self.bits}")

    def _from_word(self, word: Expr, op: Operator) -> Expr:
        moved = carried_dtype(op.output.dtype)
        bits = convert(word, f"uint{8 * item_bytes(moved)}")
        return convert(compat.intrinsic(moved, "reinterpret", bits), accumulator_dtype(op))


class GridExchange:
    """Blocks write their partial results to scratch, and read those of their row after a grid barrier.

    Every block of the launch must be resident.
    """

    def __init__(
        self, partials: Mapping[Operator, Buffer], scratch: Mapping[str, Buffer], segments: int, row: Expr,
        segment: Expr, lane: Expr,
    ):  # fmt: skip
        self.partials, self.scratch, self.segments = partials, scratch, segments
        self.row, self.segment, self.lane = row, segment, lane

    def meet(self) -> None:
        """Nothing to wait for: scratch is there before the kernel."""

    def fold(self, ops: Sequence[Operator], totals: Sequence[Expr]) -> list[Expr]:
        """The results, once all blocks of the grid are here."""
        with B.when(tir.EQ(self.lane, B.i64(0))):
            for op, total in zip(ops, totals):
                buffer = self.partials[op]
                B.store(buffer, convert(total, compat.buffer_dtype(buffer)), [self.row, self.segment])
        grid_barrier(self.scratch)
        if self.segments > 8:
            return [self._many(op) for op in ops]
        parts = ((op, [self._part(op, B.i64(s)) for s in range(self.segments)]) for op in ops)
        return [B.cell(in_order(op, found), "whole") for op, found in parts]

    def _many(self, op: Operator) -> Expr:
        """Each warp reads all segments, a lane every 32nd."""
        folded = B.local([1], accumulator_dtype(op), "parts")
        B.store(folded, identity(op), [B.i64(0)])
        own = tir.floormod(self.lane, B.i64(WARP))
        with B.loop("serial", -(-self.segments // WARP), "group") as group:
            segment = group * B.i64(WARP) + own
            inside = None if self.segments % WARP == 0 else segment < B.i64(self.segments)
            with B.when(inside):
                both = combine(op.combiner or "", B.fetch(folded, 0), self._part(op, segment))
                B.store(folded, both, [B.i64(0)])
        return shuffle_reduce(op, B.fetch(folded, 0), WARP)

    def _part(self, op: Operator, segment: Expr) -> Expr:
        return B.cell(convert(B.fetch(self.partials[op], self.row, segment), accumulator_dtype(op)), "part")
