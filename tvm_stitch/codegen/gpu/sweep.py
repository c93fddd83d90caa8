# SPDX-License-Identifier: Apache-2.0
"""Emit a sweep over a row's columns: load a thread's columns, evaluate, keep, accumulate and store them.

Inputs are loaded into *tiles* (registers) by 16-byte vector loads. All loads of a pass are in flight before the first
use. Outputs leave tiles by 16-byte stores. Scalars are computed in unrolled loops in between, because TVM splits a
vector loop that also computes. Rows too long for registers are staged in dynamic shared memory. Each thread reads
only what it wrote itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...compat import Buffer, Expr, tir
from ...graph.extent import Extent, is_number
from ...graph.ir import Access
from ...graph.names import short_name
from ...plan.gpu.mapping import ColumnMapping, Storage
from ...plan.iteration.alignment import Key
from ...plan.iteration.domain import Point
from ...plan.iteration.loops import Leaf, RowLoop
from ...plan.kernel import Stage
from .. import builder as B
from ..buffers import IN_PLACE, Buffers
from ..combine import accumulator_dtype, combine, identity, in_pairs
from ..evaluator import compute_dtype, convert
from .memory.async_copies import read_copies
from .memory.guarded_loads import Loaded, load_guarded
from .memory.packed_pairs import hold_pairs, widened
from .memory.piecewise_loads import load_pieces
from .memory.row_memory import RowMemory
from .memory.window_sums import add_up


class SweepEmitter(RowMemory):
    """Evaluates a thread's columns of a row, pass by pass."""

    def __init__(self, stage: Stage, buffers: Buffers = IN_PLACE):
        super().__init__(stage, buffers)
        self.value_tiles: dict[Key, Buffer] = {}
        self.pieces: dict[Key, Buffer] = {}  # values of the current step that were loaded piece by piece
        self.below = Loaded()  # what the current step loaded below conditions
        self.windows: dict[
            Key, tuple[Expr, Buffer]
        ] = {}  # sums in values, and tiles of the current vector's sums
        self.element: Expr | None = None  # the column's position in the tiles of a pass, and in its vector
        self.lane_element: Expr | None = None
        self.staged: dict[Key | Leaf, Buffer] = {}  # in shared memory, if a row is too long for registers
        self.stage_element: Expr = B.i64(0)
        self.binder = B.Binder(stage.bound_weight)

    # -- Reader: what the evaluator asks for --------------------------------------------------------------------
    def kept(self, key: Key) -> Expr | None:
        if self.element is None:
            return None
        if key in self.pieces:
            return convert(B.fetch(self.pieces[key], self.element), compute_dtype(key[0].output.dtype))
        if key not in self.value_tiles:
            return None
        return self._tile_element(self.value_tiles[key], self.element)

    def input(self, access: Access, point: Point) -> Expr | None:
        tile = self.load_tiles.get((access.tensor, point))
        if tile is None or self.element is None:
            return None
        leaf = (access.tensor, point)
        whole = (self._streamed(leaf) and leaf not in self.async_copies) or leaf in self.resident
        element = self.element if whole else self.lane_element
        assert element is not None
        every = self.stage.repeats(leaf)
        element = tir.floordiv(element, B.i64(every)) if every > 1 else element
        if tile in self.pairs:
            return widened(self.pairs[tile], element)
        return convert(self._tile_element(tile, element), compute_dtype(self.buffers.dtype(access.tensor)))

    def guarded_input(self, access: Access, point: Point) -> Expr | None:
        tile = self.below.tiles.get((access.tensor, point))
        if tile is None or self.element is None:
            return None
        return convert(B.fetch(tile, self.element), compute_dtype(self.buffers.dtype(access.tensor)))

    def condition(self, key: Key, condition: Expr) -> Expr | None:
        return None if self.element is None else self.below.decided(key, condition, self.element)

    def sum_of_window(self, key: Key, e: Expr) -> Expr | None:
        if key not in self.windows or not e.same_as(self.windows[key][0]) or self.lane_element is None:
            return None
        return B.fetch(self.windows[key][1], self.lane_element)

    def _tile_element(self, tile: Buffer, element: Expr) -> Expr:
        return B.fetch(tile, self.stage_element if tile in self.staged.values() else element)

    def bind(self, value: Expr, name: str) -> Expr:
        return self.binder.bind(value, name)

    # -- a sweep ------------------------------------------------------------------------------------------------
    def _sweep(self, p: RowLoop) -> list[Buffer]:
        """Evaluate, keep, accumulate and store all of the thread's columns. Return its accumulators."""
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
        with B.loop("serial", self.steps_of(p), "step") as step:
            fresh = self.step(p, cm, step, accumulators, tiles, kept, first=not several)
            for leaf in fresh:
                if leaf not in self.stage.schedule.kept_loads or self.mapping.shared:
                    del self.load_tiles[leaf]
        self.end_sweep()
        if self.mapping.keep:
            self.value_tiles.update(tiles)
            self.load_tiles.update({k: t for k, t in self.staged.items() if k in fresh})
        return accumulators

    def steps_of(self, p: RowLoop) -> Extent:
        """Return the steps of a pass."""
        return self.mapping.of(p.columns).steps

    def accumulators(self, p: RowLoop) -> list[Buffer]:
        """Allocate accumulators for a pass's reductions.

        A reduction has one for each position in a vector, or fewer, or a single one that is rescaled repeatedly.
        """
        positions = self._sums(p)
        buffers = []
        for op in p.reduces:
            acc = B.local([positions], accumulator_dtype(op), f"{short_name(op)}_acc")
            for e in range(positions):
                B.store(acc, identity(op), [B.i64(e)])
            buffers.append(acc)
        return buffers

    def step(
        self, p: RowLoop, cm: ColumnMapping, step: Expr, accumulators: list[Buffer], tiles: dict[Key, Buffer],
        kept: Sequence[Key] = (), first: bool = False,
    ) -> list[Leaf]:  # fmt: skip
        """Emit a step of a sweep and return the inputs loaded for it. ``tiles`` gets the tiles of ``kept``."""
        # All loads of a row are in flight before the first use.
        fresh = [leaf for leaf in p.loads if self._is_fresh(leaf)]
        for leaf in fresh:
            self._load_tile(leaf, p, cm, step)
        self.pieces = load_pieces(self, p, cm, step)
        self.below = load_guarded(self, p, cm, step, [key for key in p.values if key not in self.pieces])
        ahead = self._load_for_step(p, cm, step)
        if first:
            self.bind_independent()
        tiles.update((k, self._kept_tile(cm, k)) for k in kept)
        with B.loop("unroll", cm.chunks, "chunk") as chunk:
            self._chunk(p, cm, step, chunk, fresh, accumulators, tiles)
        for leaf in ahead:
            del self.resident[leaf], self.load_tiles[leaf]
        self.pieces, self.below = {}, Loaded()
        return fresh

    def end_sweep(self) -> None:
        """Leave the columns: no column or element is current."""
        self.eval.at_column(None)
        self.element = self.lane_element = None

    def bind_independent(self) -> None:
        """Begin to load what is read after reductions but depends on none, after the first pass's own loads."""
        for key in self.stage.schedule.independent:
            self.eval.hold_row(key)

    def _chunk(
        self, p: RowLoop, cm: ColumnMapping, step: Expr, chunk: Expr, fresh: list[Leaf], accumulators: list[Buffer],
        tiles: dict[Key, Buffer],
    ) -> None:  # fmt: skip
        """Emit one vector of columns: evaluate, keep, accumulate, store.

        Columns past the row's end are skipped, unless tiles are in shared memory. TVM places barriers around accesses
        to shared memory, and barriers must not be in a condition. So with tiles in shared memory the last vector is
        evaluated instead. It is kept in the column's own position, and left out of reductions and stores.
        """
        base = self.base(cm, step, chunk)
        tail = self._tail(p.columns, base)
        skip, valid = (None, tail) if self.mapping.shared else (tail, None)
        with B.when(skip):
            safe = self.inside(base, p.columns, cm)
            position = self.position(cm, step, chunk)
            fresh += self._load_shared(p, cm, safe, position)
            read_copies(self, p, cm, position)
            out_tiles = {
                k: B.local([cm.vector], self.buffers.dtype(k[0].output), f"{short_name(k[0])}_out")
                for k in p.outputs
            }
            start = chunk * B.i64(cm.vector)

            @contextmanager
            def lanes() -> Iterator[Expr]:
                with B.loop("unroll", cm.vector, "lane") as e:
                    self.element, self.lane_element = start + e, e
                    self.stage_element = position + e
                    self.eval.at_column(safe + e)
                    yield e

            for each in self.below.plan.sums:
                tile = add_up(self, self.below, each, cm, safe, start, lanes)
                self.windows[each.of.key] = each.of.nodes[-1], tile
            with lanes() as e:
                self._compute(p, e, valid, accumulators, tiles, out_tiles)
            self.windows = {}
            hold_pairs(self.pairs[tile] for tile in self.load_tiles.values() if tile in self.pairs)
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
            sums = self._sums(p)
            position = B.i64(0) if sums == 1 else e
            if 1 < sums < self.mapping.of(p.columns).vector:
                position = tir.floormod(e, B.i64(sums))
            B.store(acc, combine(op.combiner or "", B.fetch(acc, position), operand), [position])

    def _thread_partials(self, p: RowLoop, accumulators: list[Buffer]) -> list[Expr]:
        """Return the thread's partial result of each reduction, folded from an accumulator a vector element."""
        partials = []
        for op, acc in zip(p.reduces, accumulators):
            parts = [B.fetch(acc, e) for e in range(self._sums(p))]
            partials.append(B.cell(in_pairs(op, parts), "partial"))
        return partials

    def _sums(self, p: RowLoop) -> int:
        """Return a thread's accumulators of each reduction of a pass."""
        if self.mapping.storage is Storage.STEPS:
            return 1
        vector = self.mapping.of(p.columns).vector
        return min(self.mapping.sums or vector, vector)

    def _is_fresh(self, leaf: Leaf) -> bool:
        return leaf not in self.load_tiles and leaf not in self.async_copies and self._streamed(leaf)

    # -- tiles ---------------------------------------------------------------------------------------------------
    def _kept_tile(self, cm: ColumnMapping, key: Key) -> Buffer:
        if key in self.staged:
            return self.staged[key]
        return self._tile(cm, compute_dtype(key[0].output.dtype), short_name(key[0]))

    def _allocate_stage(self) -> None:
        for key, buffer in self.stage.layout.staged.items():
            self.staged[key] = B.dynamic(buffer)
