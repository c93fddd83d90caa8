# SPDX-License-Identifier: Apache-2.0
"""Rows of transposed inputs: code that the strategies for them share. Each block transposes patches of its rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from ...device import DeviceModel
from ...graph.dtype import item_bytes
from ...graph.extent import ByExtent
from ..gpu.mapping import ColumnMapping, CrossBlockReduction, RowMapping
from ..gpu.occupancy import blocks_in_shared
from ..gpu.patches import patch_bytes
from ..gpu.tile import partial_bytes, tile_words, vector_length
from ..iteration.alignment import Alignment
from ..iteration.loops import Leaf, LoopNest, schedule
from ..iteration.transposed import is_transposed, may_be_transposed, row_alignments


@dataclass(frozen=True, eq=False)
class TransposedRows:
    """Rows of static length with inputs that are read across memory.

    Attributes:
        alignment: in which columns run across the memory of ``leaves``.
        schedule: its passes, over one column space.
        columns: of a row.
        leaves: the transposed inputs.
    """

    alignment: Alignment
    schedule: LoopNest
    columns: int
    leaves: tuple[Leaf, ...]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.alignment.domain.rows)


@lru_cache(maxsize=16)  # asked by each strategy for such rows
def transposed_rows(alignment: Alignment, device: DeviceModel) -> TransposedRows | None:
    """Return the rows in which a graph reads inputs across memory, None if it reads no such input.

    Args:
        alignment: the graph's. If it is flat, rows are those of the result.
        device: a GPU.
    """
    graph = alignment.graph
    if not may_be_transposed(graph, device.choices) or len(graph.outputs[0].shape) < 2:
        return None
    for transposed in row_alignments(alignment):
        rows, sched = transposed.domain.rows, schedule(transposed)
        if not isinstance(rows, int) or len(sched.spaces) != 1 or not isinstance(sched.spaces[0], int):
            continue
        columns = sched.spaces[0]
        if columns < device.choices.least_transposed_columns or rows < device.choices.transposed_rows[0]:
            continue
        loads = dict.fromkeys(leaf for p in sched.passes for leaf in p.loads)
        leaves = tuple(leaf for leaf in loads if is_transposed(transposed, columns, leaf))
        if leaves:
            return TransposedRows(transposed, sched, columns, leaves)
    return None


class Room:
    """The room of a multiprocessor: registers and shared memory of blocks that transpose patches of whole rows."""

    def __init__(self, transposed: TransposedRows, device: DeviceModel):
        alignment, sched, columns = transposed.alignment, transposed.schedule, transposed.columns
        self.leaves, self.sched, self.columns, self.device = transposed.leaves, sched, columns, device
        self.vector = vector_length(alignment, sched, columns, device)
        self.words = tile_words(alignment, sched, columns)
        loads = {tensor for p in sched.passes for tensor, _ in p.loads}
        self.narrowest = min(item_bytes(tensor.dtype) for tensor in loads)

    def mapping(self, rows: int, splits: int) -> RowMapping | None:
        """Return a mapping of ``rows`` rows a block, ``splits`` blocks a row, None if registers are too few."""
        threads = self.device.choices.transposed_threads
        while rows * threads < self.device.choices.transposed_block:
            threads *= 2
        exchange = CrossBlockReduction.CLUSTER if splits > 1 else CrossBlockReduction.NONE
        while rows * threads <= self.device.max_threads_per_block:
            chunks = -(-self.columns // (splits * threads * self.vector))
            spaces = ByExtent([(self.columns, ColumnMapping(self.vector, chunks))])
            mapping = RowMapping(
                threads, rows, spaces, row_splits=splits, exchange=exchange, transposed=self.leaves
            )
            if chunks * self.vector * self.words <= self._tile_limit(mapping):
                return mapping
            threads *= 2
        return None

    @property
    def row_counts(self) -> list[int]:
        """Rows that a block may transpose, best first: they fill a sector of memory at least."""
        choices = self.device.choices
        return [n for n in choices.transposed_rows if n * self.narrowest >= choices.least_transposed_bytes]

    def cluster_sizes(self) -> list[int]:
        """Return the numbers of blocks of a cluster that may share rows."""
        return [n for n in self.device.choices.transposed_splits if n <= self.device.max_cluster]

    def resident(self, mapping: RowMapping) -> int:
        """Return the approximate number of blocks that fit a multiprocessor at once, 0 if there is no room for one.

        A thread has registers for its tiles in the dtype of computation, because NVIDIA's compiler converts kept
        values of half types early. It has some more for other values. That is an estimate, and registers will be
        ``bounded`` by its result. So they are shared out without the units of the hardware, for which
        ``blocks_per_sm`` takes the figures that a compiler reported. One block always has enough of them.
        """
        device = self.device
        shared = patch_bytes(self.sched, mapping) + partial_bytes(self.sched, mapping)
        shared += self.device.choices.shared_slack_bytes
        (spread,) = mapping.columns.values()
        elements = spread.chunks * spread.vector
        tile = max(elements * self.words, elements if self.narrowest == 2 else 0)
        registers = max(
            self.device.choices.transposed_registers, int(tile) + self.device.choices.largest_block_registers
        )
        by_registers = max(1, device.registers_per_sm // (mapping.block * registers))
        return min(by_registers, blocks_in_shared(device, shared))

    def bounded(self, mapping: RowMapping) -> RowMapping:
        """Return the mapping with a bound on registers such that as many blocks as there is room for are resident."""
        resident = self.resident(mapping)
        return replace(mapping, blocks_per_sm=resident) if resident > 1 else mapping

    def _tile_limit(self, mapping: RowMapping) -> float:
        """Return the registers that a thread may spend on its columns."""
        if mapping.block < self.device.max_threads_per_block:
            return self.device.choices.tile_registers
        return self.device.registers_per_sm // mapping.block - self.device.choices.largest_block_registers
