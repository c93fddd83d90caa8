# SPDX-License-Identifier: Apache-2.0
"""Emit a stitch op for a GPU: rows over blocks and threads, sweeps over columns, reductions across lanes and warps.

Tails are predicated, and no barrier or shuffle is inside a condition. Threads past the last row work on it without
storing. In shared-memory mode, columns past the end repeat the last vector. With symbolic rows, loads are predicated
too: a surplus thread is clamped to a row that may not exist.

An empty input gets one idle block, whose threads return before the first barrier. CUDA rejects a launch of zero
blocks, and TVM's runtime launches one block instead. TVM also refuses barriers below a condition on the host's side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType

from ...compat import Buffer, Expr, T, tir
from ...graph.extent import Extent, as_expr, ceildiv
from ...graph.ir import Operator
from ...plan.gpu.mapping import CrossBlockReduction, Storage
from ...plan.iteration.alignment import Key
from ...plan.iteration.domain import Point
from ...plan.iteration.loops import RowLoop
from ...plan.kernel import Stage
from .. import builder as B
from ..buffers import IN_PLACE, Buffers
from ..evaluator import Evaluator, convert
from .exchange import Exchanger, make_exchange
from .launch_bounds import bound_registers
from .memory.async_copies import begin_copies, wait_for_copies
from .memory.cache_policy import residency_policy
from .online import online_partials
from .reduce import WARP, as_bound, row_reduce, shuffle_reduce
from .sweep import SweepEmitter

_NO_SCRATCH: Mapping[str, Buffer] = MappingProxyType({})
_NO_PARTIALS: Mapping[Operator, Buffer] = MappingProxyType({})


class RowEmitter(SweepEmitter):
    """Emits one row domain's passes, for the rows of one block and thread."""

    def __init__(
        self,
        stage: Stage,
        scratch: Mapping[str, Buffer] = _NO_SCRATCH,
        partials: Mapping[Operator, Buffer] = _NO_PARTIALS,
        buffers: Buffers = IN_PLACE,
    ):
        super().__init__(stage, buffers)
        self.scratch, self.partials = scratch, partials
        self.exchange: Exchanger | None = None

    def emit(self) -> None:
        with ExitStack() as stack:
            row = self._launch(stack)
            self.eval = Evaluator(self.al, row, self, buffers=self.buffers)
            self.eval.guard = self.in_range if self.guarded else None
            if self.stage.l2_resident:
                self.l2_resident = residency_policy()
            if self.mapping.shared:
                self.async_copies = begin_copies(self)
                self._allocate_stage()
            self.exchange = self.make_exchange(row)
            self._load_early()
            if self.exchange is not None and (self.mapping.shared or self.mapping.transposed):
                self.exchange.meet()  # the accesses to staged values and patches contain block barriers
            wait_for_copies(self)
            for passes in self.stage.levels:
                self._level(passes)
            self._row_outputs()

    def _launch(self, stack: ExitStack) -> Expr:
        m = self.mapping
        if m.split:
            p = self.stage.schedule.passes[0]
            per_block = m.threads * m.of(p.columns).vector * m.of(p.columns).chunks
            grid = ceildiv(p.columns, per_block)
        else:
            groups = ceildiv(self.domain.rows, m.rows_per_block * m.tasks)
            grid = groups if m.row_splits == 1 else groups * m.row_splits
        total = self.stage.schedule.passes[0].columns if m.split else self.domain.rows
        if not isinstance(grid, int):  # an empty input gets one idle block: CUDA rejects a launch of none
            grid = tir.max(grid, B.i64(1))
        self._launch_threads(stack, grid)
        if not isinstance(grid, int):  # that block must not divide by an extent of zero either
            with B.when(tir.LE(as_expr(total), B.i64(0))):
                B.leave()
        if m.split:
            return B.i64(0)
        rows = self.domain.rows
        group = self._groups_of_blocks()
        if m.tasks > 1:
            group = group * B.i64(m.tasks) + stack.enter_context(B.loop("serial", m.tasks, "task"))
        return self.row_of(group, isinstance(rows, int) and rows % (m.rows_per_block * m.tasks) == 0)

    def _launch_threads(self, stack: ExitStack, grid: Extent) -> None:
        """Launch ``grid`` blocks of the mapping's threads."""
        m = self.mapping
        self.block = stack.enter_context(T.launch_thread("blockIdx.x", as_expr(grid)))
        if m.exchange is CrossBlockReduction.CLUSTER:
            stack.enter_context(T.launch_thread("clusterCtaIdx.x", B.i64(m.row_splits)))
        if m.rows_per_block > 1:
            self.slot = stack.enter_context(T.launch_thread("threadIdx.y", B.i64(m.rows_per_block)))
        if m.threads > 1:
            self.lane = stack.enter_context(T.launch_thread("threadIdx.x", B.i64(m.threads)))
        if m.blocks_per_sm:
            bound_registers(stack, m.blocks_per_sm)

    def _groups_of_blocks(self) -> Expr:
        """Return the group of rows of this block or its cluster. A cluster's block has one segment of the columns."""
        splits = self.mapping.row_splits
        if splits == 1:
            return self.block
        self.segment = B.bind(tir.floormod(self.block, B.i64(splits)), "segment")
        return tir.floordiv(self.block, B.i64(splits))

    def row_of(self, group: Expr, exact: bool) -> Expr:
        """Return the row of this thread's slot in a group of rows. ``exact``: no group reaches past the last row."""
        rows, m = self.domain.rows, self.mapping
        self.first_row = group * B.i64(m.rows_per_block)
        row = group if m.rows_per_block == 1 else self.first_row + self.slot
        if exact:
            return row
        self.in_range = row < as_expr(rows)
        # Threads past the last row work on it too: barriers and shuffles see every thread, stores are predicated.
        # With symbolic rows there may be no row at all, so that loads are predicated as well.
        self.guarded = not isinstance(rows, int)
        return B.bind(tir.min(row, as_expr(rows) - B.i64(1)), "row")

    def make_exchange(self, row: Expr) -> Exchanger | None:
        """Create the exchange among the blocks of a row."""
        return make_exchange(self.stage, self.partials, self.scratch, row, self.segment, self.slot, self.lane)

    def _load_early(self) -> None:
        """Load the first inputs of passes after a reduction, so that they are there when those passes begin."""
        for leaf in self.stage.early:
            p = self.stage.schedule.loading(leaf)
            self._load_tile(leaf, p, self.mapping.of(p.columns), B.i64(0))
            if not self._streamed(leaf):
                self.resident[leaf] = self.load_tiles[leaf]

    def _level(self, passes: Sequence[RowLoop]) -> None:
        """Emit the passes between two levels of reductions. Blocks that share a row exchange their results once."""
        if self.mapping.storage is Storage.STEPS and passes:
            ops, partials = online_partials(self, passes)
            self._fold(ops, partials)
            return  # values of the results are bound where they are read
        rescaled = any(op in self.stage.rescaled for p in passes for op in p.reduces)
        if self.exchange is None and not rescaled:
            for p in passes:
                self._pass(p)
            return
        ops, partials = [], []
        relative: list[Key] = []  # row values that depend on a warp's maximum
        for p in passes:
            if any(op in self.stage.rescaled for op in p.reduces):
                relative += p.row_values
            of_pass = self._thread_partials(p, self._sweep(p))
            ops += p.reduces
            partials += self._with_bounds(p, of_pass)
        if not ops:
            return
        self._fold(ops, partials)
        self.eval.forget(relative)
        for key in relative:
            self.eval.bind_row(key)

    def _with_bounds(self, p: RowLoop, partials: list[Expr]) -> list[Expr]:
        """Fold maxima that sums are relative to over the warp, and record their bounds. Return all partial results."""
        for i, op in enumerate(p.reduces):
            if op in self.stage.rescaled.values():
                partials[i] = shuffle_reduce(op, partials[i], min(self.mapping.threads, WARP))
                self.eval.set_row_value((op, self.al.row_point), B.cell(as_bound(partials[i]), "bound"))
        return partials

    def _pass(self, p: RowLoop) -> None:
        """Emit one sweep over the columns of a row with one block, and the reductions that the sweep feeds."""
        partials = self._thread_partials(p, self._sweep(p))
        if p.reduces:
            self._fold(p.reduces, partials)

    def _fold(self, ops: Sequence[Operator], partials: Sequence[Expr]) -> None:
        """Fold the threads' partial results over the row's threads, and over its blocks."""
        m, rescaled = self.mapping, self.stage.rescaled
        if self.exchange is None:
            folded = row_reduce(
                ops,
                partials,
                m.threads,
                m.rows_per_block,
                self.lane,
                self.slot,
                self.stage.partials_in_order,
                rescaled,
            )
        else:
            folded = self.exchange.fold(ops, partials)
        self._set_results(ops, folded)

    def _set_results(self, ops: Iterable[Operator], results: Iterable[Expr]) -> None:
        for op, result in zip(ops, results):
            self.eval.set_row_value((op, self.al.row_point), result)

    def _row_outputs(self) -> None:
        sched = self.stage.schedule
        for key in sched.final_values:
            self.eval.bind_row(key)
        if not sched.row_outputs:
            return
        first = tir.EQ(self.lane, B.i64(0)) if self.mapping.threads > 1 else None
        if self.mapping.row_splits > 1:
            first = B.both(first, tir.EQ(self.segment, B.i64(0)))
        with B.when(B.both(self.in_range, first)):
            for op, point in sched.row_outputs:
                self._store_row(op, point)

    def _store_row(self, op: Operator, point: Point) -> None:
        value = convert(self.eval.value((op, point)), self.buffers.dtype(op.output))
        B.store(self.buffers.of(op.output), value, self.eval.indices((op, point)))
