# SPDX-License-Identifier: Apache-2.0
"""Emit a stage of persistent clusters, which transpose groups of rows in shared memory (see plan/strategies)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from ...compat import Buffer, Expr, T, tir
from ...graph.extent import static_extent
from ...plan.gpu.mapping import ColumnMapping
from ...plan.iteration.alignment import Key
from ...plan.iteration.loops import Leaf, RowLoop
from .. import builder as B
from ..evaluator import Evaluator
from .exchange import ClusterExchange
from .memory.patch_copies import PatchCopy, SharedColumns
from .rows import RowEmitter


class PersistentEmitter(RowEmitter):
    """Emits a loop over a cluster's groups of rows.

    Each group is read from its patch. Then the copies of the next group begin.
    """

    def emit(self) -> None:
        m, rows = self.mapping, static_extent(self.domain.rows)
        groups = -(-rows // m.rows_per_block)
        with ExitStack() as stack:
            self._launch_threads(stack, m.workers * m.row_splits)
            worker = self._groups_of_blocks()
            self.eval = Evaluator(self.al, B.i64(0), self, buffers=self.buffers)
            exchange = self.make_exchange(B.i64(0))
            assert isinstance(exchange, ClusterExchange), "blocks that stay share their rows in clusters"
            self.exchange = exchange
            self.patches = {leaf: PatchCopy(self, leaf) for leaf in self.stage.layout.copied_patches}
            self.shared_columns = SharedColumns(self)
            for copy in self.patches.values():
                self._begin(copy, copy.layout.copies, worker, None)
            self.shared_columns.load()
            exchange.meet()
            count = tir.floordiv(B.i64(groups + m.workers - 1) - worker, B.i64(m.workers))
            with B.loop("serial", count, "turn") as iteration:
                group = worker + iteration * B.i64(m.workers)
                self.another = group + B.i64(m.workers) < B.i64(groups)
                self.next_group = tir.Select(self.another, group + B.i64(m.workers), group)
                self._group(group, rows % m.rows_per_block == 0, iteration)
            B.evaluate(T.ptx.cp.async_.wait_all())

    def _group(self, group: Expr, exact: bool, iteration: Expr) -> None:
        """Emit the evaluation of a group of rows."""
        assert isinstance(self.exchange, ClusterExchange)
        self.value_tiles, self.load_tiles, self.in_range = {}, {}, None
        self.exchange.iteration = iteration
        self.eval = Evaluator(self.al, self.row_of(group, exact), self, buffers=self.buffers)
        B.evaluate(T.ptx.cp.async_.wait_all())
        B.block_barrier()
        for leaf, copy in self.patches.items():
            p = self.stage.schedule.loading(leaf)
            cm = self.mapping.of(p.columns)
            self.load_tiles[leaf] = self.input_tile(leaf, cm.chunks * cm.vector)
            copy.read(self.load_tiles[leaf])
        B.block_barrier()
        for copy in self.patches.values():
            self._begin(copy, copy.layout.early, self.next_group, self.another)
        for passes in self.stage.levels:
            self._level(passes)
        self._row_outputs()

    @staticmethod
    def _begin(copy: PatchCopy, count: int, group: Expr, wanted: Expr | None) -> None:
        """Begin the first ``count`` of a thread's copies for a group of rows."""
        with B.loop("unroll", count, "copy") as number:
            copy.copy(group, number, wanted)

    def _chunk(
        self, p: RowLoop, cm: ColumnMapping, step: Expr, chunk: Expr, fresh: list[Leaf], accumulators: list[Buffer],
        tiles: dict[Key, Buffer],
    ) -> None:  # fmt: skip
        if p is self.stage.schedule.passes[-1]:
            for copy in self.patches.values():
                early = copy.layout.early
                each = -(-(copy.layout.copies - early) // cm.chunks)
                for i in range(each):
                    number = B.i64(early + i) + chunk * B.i64(each)
                    with B.when(number < B.i64(copy.layout.copies)):
                        copy.copy(self.next_group, number, self.another)
        super()._chunk(p, cm, step, chunk, fresh, accumulators, tiles)

    def _load_shared(self, p: RowLoop, cm: ColumnMapping, base: Expr, position: Expr) -> list[Leaf]:
        kept = [leaf for leaf in p.loads if leaf in self.shared_columns.kept]
        for leaf in kept:
            self.load_tiles[leaf] = self.input_tile(leaf, cm.vector)
            self.shared_columns.read(leaf, self.load_tiles[leaf], position, cm.vector)
        others = replace(p, loads=[leaf for leaf in p.loads if leaf not in kept])
        return kept + super()._load_shared(others, cm, base, position)
