# SPDX-License-Identifier: Apache-2.0
"""Emit a stitch op for a GPU: rows over blocks and threads, tiles in registers, reductions across lanes and warps.

Inputs are copied into *tiles* (registers) by 16-byte vector loads, all of a pass in flight before the first use;
outputs leave tiles by 16-byte stores. Between them scalars are computed in unrolled loops: TVM splits a vector loop
that also computes. Rows too long for registers are staged in dynamic shared memory; each thread reads only what it
wrote itself.

Tails are predicated, and no barrier or shuffle stands in a condition. Threads past the last row work on it without
storing; in shared-memory mode columns past the end repeat the last vector. With symbolic rows loads are predicated
too, because the row that a surplus thread is clamped to need not exist; and an empty input gets one idle block, whose
threads return before the first barrier: a launch of zero blocks is an error on CUDA, of which TVM's runtime makes one
block, and TVM refuses barriers below a condition on the host's side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from ...compat import Buffer, Expr, T, tir
from ...graph.extent import Extent, as_expr, ceildiv, is_number
from ...graph.ir import Access, Operator
from ...plan.gpu.mapping import ColumnMapping, CrossBlockReduction, Storage
from ...plan.iteration.alignment import Key
from ...plan.iteration.domain import Point
from ...plan.iteration.loops import Leaf, RowLoop
from ...plan.kernel import Stage
from .. import builder as B
from ..buffers import IN_PLACE, Buffers
from ..combine import accumulator_dtype, combine, identity, in_pairs
from ..evaluator import Evaluator, compute_dtype, convert, short_name
from .exchange import Exchanger, make_exchange
from .launch_bounds import bound_registers
from .memory.async_copies import begin_copies, read_copies, wait_for_copies
from .memory.cache_policy import residency_policy
from .memory.packed_pairs import widened
from .memory.row_memory import RowMemory
from .online import online_partials
from .reduce import WARP, as_bound, row_reduce, shuffle_reduce


class RowEmitter(RowMemory):
    """Emits one row domain's passes, for the rows of one block and thread."""

    def __init__(
        self, stage: Stage, scratch: dict[str, Buffer] | None = None, buffers: Buffers = IN_PLACE, padding: int = 0
    ):  # fmt: skip
        super().__init__(stage, buffers, padding)
        self.scratch = scratch or {}
        self.value_tiles: dict[Key, Buffer] = {}
        self.element: Expr | None = None  # the column's place in the tiles of a pass, and in its vector
        self.lane_element: Expr | None = None
        self.exchange: Exchanger | None = None
        self.staged: dict[Key | Leaf, Buffer] = {}  # in shared memory, where a row is too long for registers
        self.copied: dict[Leaf, Buffer] = {}  # the same of inputs that are copied there in the background
        self.stage_element: Expr = B.i64(0)
        self.binder = B.Binder()

    # -- Reader: what the evaluator asks for --------------------------------------------------------------------
    def kept(self, key: Key) -> Expr | None:
        if key not in self.value_tiles or self.element is None:
            return None
        return self._tile_element(self.value_tiles[key], self.element)

    def input(self, access: Access, point: Point) -> Expr | None:
        tile = self.load_tiles.get((access.tensor, point))
        if tile is None or self.element is None:
            return None
        leaf = (access.tensor, point)
        whole = (self._streamed(leaf) and leaf not in self.copied) or leaf in self.resident
        element = self.element if whole else self.lane_element
        assert element is not None
        if tile in self.pairs:
            return widened(self.pairs[tile], element)
        return convert(self._tile_element(tile, element), compute_dtype(self.buffers.dtype(access.tensor)))

    def _tile_element(self, tile: Buffer, element: Expr) -> Expr:
        return B.fetch(tile, self.stage_element if tile in self.staged.values() else element)

    def bind(self, value: Expr, name: str) -> Expr:
        return self.binder.bind(value, name)

    # -- the kernel ---------------------------------------------------------------------------------------------
    def emit(self) -> None:
        with ExitStack() as stack:
            row = self._launch(stack)
            self.eval = Evaluator(self.al, row, self, buffers=self.buffers)
            self.eval.guard = self.in_range if self.guarded else None
            if self.stage.l2_resident:
                self.l2_resident = residency_policy()
            if self.mapping.shared:
                self.copied = begin_copies(self)
                self._allocate_stage()
            self.exchange = make_exchange(self.stage, self.scratch, row, self.segment, self.slot, self.lane)
            self._load_early()
            if self.exchange is not None and (self.mapping.shared or self.mapping.crossed):
                self.exchange.meet()  # block barriers stand among accesses to staged values and patches
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
        if not isinstance(grid, int):  # an empty input gets one idle block: no grid is an error on CUDA
            grid = tir.max(grid, B.i64(1))
        self._launch_threads(stack, grid)
        if not isinstance(grid, int):  # nor may that block divide by an extent of zero
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
        """The group of rows of this block, or of its cluster, of which it has a segment of the columns then."""
        splits = self.mapping.row_splits
        if splits == 1:
            return self.block
        self.segment = B.bind(tir.floormod(self.block, B.i64(splits)), "segment")
        return tir.floordiv(self.block, B.i64(splits))

    def row_of(self, group: Expr, exact: bool) -> Expr:
        """The row of this thread's slot in a group of rows; ``exact`` when no group reaches past the last row."""
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

    def _load_early(self) -> None:
        """Load what passes behind a reduction read first: it is there when they begin."""
        for leaf in self.stage.early:
            p = self.stage.schedule.loading(leaf)
            self._load_tile(leaf, p, self.mapping.of(p.columns), B.i64(0))
            if not self._streamed(leaf):
                self.resident[leaf] = self.load_tiles[leaf]

    def _level(self, passes: Sequence[RowLoop]) -> None:
        """The passes between two levels of reductions; what several blocks of a row reduce is exchanged once."""
        if self.mapping.storage is Storage.STEPS and passes:
            ops, partials = online_partials(self, passes)
            self._fold(ops, partials)
            return  # what is computed of the results is bound where it is read
        rescaled = any(op in self.stage.rescaled for p in passes for op in p.reduces)
        if self.exchange is None and not rescaled:
            for p in passes:
                self._pass(p)
            return
        ops, partials = [], []
        relative: list[Key] = []  # row values that are computed of a warp's maximum
        for p in passes:
            if any(op in self.stage.rescaled for op in p.reduces):
                relative += p.row_values
            found = self._thread_partials(p, self._sweep(p))
            ops += p.reduces
            partials += self._with_bounds(p, found)
        if not ops:
            return
        self._fold(ops, partials)
        self.eval.forget(relative)
        for key in relative:
            self.eval.bind_row(key)

    def _with_bounds(self, p: RowLoop, partials: list[Expr]) -> list[Expr]:
        """Partial results; maxima that sums are taken beside are their warp's, and from here on their bound."""
        for i, op in enumerate(p.reduces):
            if op in self.stage.rescaled.values():
                partials[i] = shuffle_reduce(op, partials[i], min(self.mapping.threads, WARP))
                self.eval.set_row_value((op, self.al.row_point), B.cell(as_bound(partials[i]), "bound"))
        return partials

    def _pass(self, p: RowLoop) -> None:
        """One sweep over the row's columns and the reductions that it feeds, where a row has one block."""
        partials = self._thread_partials(p, self._sweep(p))
        if p.reduces:
            self._fold(p.reduces, partials)

    def _fold(self, ops: Sequence[Operator], partials: Sequence[Expr]) -> None:
        """Fold what threads have reduced over the row's, and over its blocks."""
        m, rescaled = self.mapping, self.stage.rescaled
        if self.exchange is None:
            found = row_reduce(ops, partials, m.threads, m.rows_per_block, self.lane, self.slot, rescaled)
        else:
            found = self.exchange.fold(ops, partials)
        self._set_results(ops, found)

    def _sweep(self, p: RowLoop) -> list[Buffer]:
        """Evaluate, keep, accumulate and store all of the thread's columns; returns its accumulators."""
        self.eval.at_column(None)
        for key in p.row_values:
            self.eval.bind_row(key)
        cm = self.mapping.of(p.columns)
        accumulators = self.accumulators(p)
        kept = [k for k in p.values if k in self.stage.schedule.kept_values and k not in self.value_tiles]
        several = not is_number(cm.steps, 1)
        if several:
            self.bind_independent()
        tiles: dict[Key, Buffer] = {}
        with B.loop("serial", cm.steps, "step") as step:
            fresh = self.step(p, cm, step, accumulators, tiles, kept, first=not several)
            for leaf in fresh:
                if leaf not in self.stage.schedule.kept_loads or self.mapping.shared:
                    del self.load_tiles[leaf]
        self.end_sweep()
        if self.mapping.keep:
            self.value_tiles.update(tiles)
            self.load_tiles.update({k: t for k, t in self.staged.items() if k in fresh})
        return accumulators

    def accumulators(self, p: RowLoop) -> list[Buffer]:
        """Of a pass's reductions: one for each place in a vector, or a single one that is scaled again and again."""
        places = 1 if self.mapping.storage is Storage.STEPS else self.mapping.of(p.columns).vector
        found = []
        for op in p.reduces:
            acc = B.local([places], accumulator_dtype(op), f"{short_name(op)}_acc")
            for e in range(places):
                B.store(acc, identity(op), [B.i64(e)])
            found.append(acc)
        return found

    def step(
        self, p: RowLoop, cm: ColumnMapping, step: Expr, accumulators: list[Buffer], tiles: dict[Key, Buffer],
        kept: Sequence[Key] = (), first: bool = False,
    ) -> list[Leaf]:  # fmt: skip
        """A step of a sweep; returns the inputs that were loaded for it. ``tiles`` gets those of what is ``kept``."""
        # Of every row: all loads are in flight before the first use.
        fresh = [leaf for leaf in p.loads if self._is_fresh(leaf)]
        for leaf in fresh:
            self._load_tile(leaf, p, cm, step)
        ahead = self._load_for_step(p, cm, step)
        if first:
            self.bind_independent()
        tiles.update((k, self._kept_tile(cm, k)) for k in kept)
        with B.loop("unroll", cm.chunks, "chunk") as chunk:
            self._chunk(p, cm, step, chunk, fresh, accumulators, tiles)
        for leaf in ahead:
            del self.resident[leaf], self.load_tiles[leaf]
        return fresh

    def end_sweep(self) -> None:
        """Leave the columns."""
        self.eval.at_column(None)
        self.element = self.lane_element = None

    def bind_independent(self) -> None:
        """Begin to load what is read behind reductions and depends on none, after the first pass's own loads."""
        for key in self.stage.schedule.independent:
            self.eval.hold_row(key)

    def _chunk(
        self, p: RowLoop, cm: ColumnMapping, step: Expr, chunk: Expr, fresh: list[Leaf], accumulators: list[Buffer],
        tiles: dict[Key, Buffer],
    ) -> None:  # fmt: skip
        """One vector of columns: evaluate, keep, accumulate, store.

        Columns past the row's end are skipped. Where tiles are in shared memory nothing may be skipped (TVM places
        barriers around such accesses, and none may stand in a condition): the last vector is evaluated instead, kept
        in the column's own place, and left out of reductions and stores.
        """
        base = self.base(cm, step, chunk)
        tail = self._tail(p.columns, base)
        skip, valid = (None, tail) if self.mapping.shared else (tail, None)
        with B.when(skip):
            safe = self.inside(base, p.columns, cm)
            place = self.place(cm, step, chunk)
            fresh += self._load_shared(p, cm, safe, place)
            read_copies(self, p, cm, place)
            out_tiles = {
                k: B.local([cm.vector], self.buffers.dtype(k[0].output), f"{short_name(k[0])}_out")
                for k in p.outputs
            }
            with B.loop("unroll", cm.vector, "lane") as e:
                self.element, self.lane_element = chunk * B.i64(cm.vector) + e, e
                self.stage_element = place + e
                self.eval.at_column(safe + e)
                self._compute(p, e, valid, accumulators, tiles, out_tiles)
            with B.when(B.both(self.in_range, valid) if p.outputs else None):
                self._store(p, cm, safe, out_tiles)

    def _compute(
        self, p: RowLoop, e: Expr, valid: Expr | None, accumulators: list[Buffer], tiles: dict[Key, Buffer],
        out_tiles: dict[Key, Buffer],
    ) -> None:  # fmt: skip
        assert self.element is not None
        for leaf, tile in self.staged.items():
            if leaf in self.load_tiles and self.load_tiles[leaf] is not tile:
                B.store(tile, B.fetch(self.load_tiles[leaf], self.element), [self.stage_element])
        for key in p.values:
            if key[0].is_reduce:
                continue
            value = self.eval.value(key)
            if key in tiles:
                B.store(tiles[key], value, [self.stage_element if key in self.staged else self.element])
            if key in out_tiles:
                B.store(out_tiles[key], convert(value, self.buffers.dtype(key[0].output)), [e])
        for op, acc in zip(p.reduces, accumulators):
            operand = self.eval.operand(op)
            if valid is not None:
                operand = B.cell(tir.Select(valid, operand, identity(op)), "operand")
            place = B.i64(0) if self.mapping.storage is Storage.STEPS else e
            B.store(acc, combine(op.combiner or "", B.fetch(acc, place), operand), [place])

    def _thread_partials(self, p: RowLoop, accumulators: list[Buffer]) -> list[Expr]:
        """The thread's partial result of each reduction: its accumulators, one for each place in a vector, folded."""
        partials = []
        for op, acc in zip(p.reduces, accumulators):
            parts = [B.fetch(acc, e) for e in range(self.mapping.of(p.columns).vector)]
            partials.append(B.cell(in_pairs(op, parts), "partial"))
        return partials

    def _set_results(self, ops: Iterable[Operator], results: Iterable[Expr]) -> None:
        for op, result in zip(ops, results):
            self.eval.set_row_value((op, self.al.row_point), result)

    def _is_fresh(self, leaf: Leaf) -> bool:
        return leaf not in self.load_tiles and leaf not in self.copied and self._streamed(leaf)

    # -- tiles ---------------------------------------------------------------------------------------------------
    def _kept_tile(self, cm: ColumnMapping, key: Key) -> Buffer:
        if key in self.staged:
            return self.staged[key]
        return self._tile(cm, compute_dtype(key[0].output.dtype), short_name(key[0]))

    def _allocate_stage(self) -> None:
        sched, m = self.stage.schedule, self.mapping
        for key in sched.kept_values:
            dtype = compute_dtype(key[0].output.dtype)
            self.staged[key] = self.dynamic(m.block_columns(key[1].columns), dtype, short_name(key[0]))
        for leaf in sched.kept_loads - self.copied.keys():
            size, dtype = m.block_columns(leaf[1].columns), self.buffers.dtype(leaf[0])
            self.staged[leaf] = self.dynamic(size, dtype, leaf[0].name + "_stage")

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
