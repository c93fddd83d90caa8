# SPDX-License-Identifier: Apache-2.0
"""The costs by which a grid-wide plan chooses the threads of a row, for blocks of one shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...cost.mappings import idle_device_cost, reduction_cost, row_cost, tile_cost
from ...device import DeviceModel
from ...graph.dtype import compute_dtype, exchanged_dtype, item_bytes
from ...graph.extent import extent_key
from ..iteration.alignment import Alignment
from ..iteration.loops import LoopNest
from ..kernel import Stage
from .tile import tile_words


@dataclass(frozen=True)
class BlockCosts:
    """Costs of mappings to blocks of one shape.

    Attributes:
        device: the device that the kernel is for.
        threads: of a block.
        blocks: of the resident grid.
        words: the registers of a thread for tiles and accumulators.
    """

    device: DeviceModel
    threads: int
    blocks: int
    words: int

    def on_units(self, phases: Sequence[Sequence[Stage]]) -> float:
        """Return what blocks of another size cost if matrix units multiply weights as they lie."""
        units = [stage.row_mapping.matrix for stages in phases for stage in stages]
        choices = self.device.choices
        whole = any(each is not None and each.packed.bits == 16 for each in units)
        return choices.matrix_block_cost if whole and self.threads != choices.matrix_block_threads else 0.0

    def words_of(self, al: Alignment, sched: LoopNest, extent: int) -> float:
        """Return the registers a column costs a thread: its tile, and an accumulator for each reduction across rows."""
        cross_row = [op for p in sched.over(extent) for op, _ in p.cross_row]
        sums = sum(
            max(1.0, item_bytes(compute_dtype(op.output.dtype)) / 4)
            for op in cross_row
            if op.output.size != 1
        )
        same_rows = sum(1 for _, point in sched.hoisted if extent_key(point.columns) == extent)
        return tile_words(al, sched, extent) + sums + same_rows

    def of_rows(
        self, al: Alignment, sched: LoopNest, vectors: Mapping[int, int], threads: int, rows: int, tiled: bool
    ) -> float:
        """Return the cost of idle lanes, registers beyond the bound, uncoalesced loads, barriers and idle blocks."""
        cost = 0.0
        # Idle lanes matter as far as there is work for all.
        busy = self.blocks * self.threads * self.device.choices.busy_elements
        work = min(1.0, rows * max(vectors, default=1) / busy)
        for extent, vector in vectors.items():
            count = -(-extent // vector)
            chunks = -(-count // threads)
            words = chunks * vector * self.words_of(al, sched, extent)
            if tiled:
                chunks = min(chunks, self.device.choices.tile_chunks)
                cost += self._of_tiles(al, sched, extent, vector, chunks, threads, rows)
                continue
            idle = chunks * threads / count - 1.0
            over = max(0.0, words / self.words - 1.0)
            cost += row_cost(idle, work, over, threads, vector, extent, self.device.choices)
        if threads > self.device.warp and any(p.reduces for p in sched.passes):
            cost += reduction_cost(threads // self.device.warp, self.device.choices)
        groups = -(-rows // max(1, self.threads // threads))
        if groups < self.device.sms and not tiled:
            most = max((-(-e // vector) for e, vector in vectors.items()), default=1)
            steps, least = most / threads, most * rows / (self.device.sms * self.threads)
            cost += idle_device_cost(groups / self.device.sms, steps, least, self.device.choices)
        return cost

    def _of_tiles(
        self, al: Alignment, sched: LoopNest, extent: int, vector: int, chunks: int, threads: int, rows: int
    ) -> float:
        """Return the cost of tiles of columns: idle lanes and blocks, uncoalesced loads, and partial results.

        Each block that shares the rows of a tile has a partial result of every column of it. Wide tiles are few, so
        they have many such blocks.
        """
        width = vector * chunks * threads
        tiles, tasks = -(-extent // width), -(-rows // (self.threads // threads))
        if tiles > self.blocks:
            return math.inf
        blocks = min(self.blocks // tiles, tasks)
        idle = tiles * width / extent - 1.0
        waiting = self.blocks * -(-tasks // blocks) / (tasks * tiles) - 1.0
        folded = {op for p in sched.over(extent) for op, _ in p.cross_row if op.output.size != 1}
        partial = 2 * blocks * extent * sum(item_bytes(exchanged_dtype(op.output.dtype)) for op in folded)
        read = sum(int(t.size) * item_bytes(t.dtype) for t in al.graph.inputs)
        return (
            tile_cost(idle, threads, vector, self.threads / threads, self.device.choices)
            + max(0.0, waiting)
            + partial / max(1, read)
        )
