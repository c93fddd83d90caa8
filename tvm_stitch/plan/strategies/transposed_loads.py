# SPDX-License-Identifier: Apache-2.0
"""Transposed inputs on a GPU: patches of some rows and columns, loaded along the one axis and used along the other.

Neighbouring columns of a row are far apart in such an input, and neighbouring rows next to each other. A warp that
loads a row of it moves a sector of 32 bytes for every element. So a block takes several rows, loads its patch of them
with neighbouring threads at neighbouring rows, and finds its columns in shared memory.

Without a reduction a patch is 32 to 128 columns wide, whichever leaves fewest threads idle. With a reduction it holds
whole rows, as many as share out evenly among the multiprocessors. If two blocks of at most half a line do not fit a
multiprocessor, a cluster shares rows: of 4,096 columns of float32 each of 8 blocks holds an eighth of 32 rows. Sizes
are static, and only reads are transposed: results are written as their rows lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ... import compat
from ...compat import Analyzer
from ...cost.choices import Choices
from ...device import DeviceModel
from ...graph.dtype import item_bytes
from ...graph.extent import ByExtent, as_expr, flatten, product, static_extent
from ...graph.ir import StitchGraph, Tensor
from ..gpu.mapping import ColumnMapping, CrossBlockReduction, RowMapping
from ..gpu.occupancy import blocks_in_shared
from ..gpu.patches import crossed_bytes
from ..gpu.tile import MOST_BLOCKS, partial_bytes, tile_words, vector_length
from ..iteration.alignment import Alignment, Misaligned, align
from ..iteration.domain import At, Domain
from ..iteration.loops import Leaf, LoopNest, is_streamed, schedule
from .persistent import persistent


def plan_crossed(
    graph: StitchGraph, alignment: Alignment, device: DeviceModel
) -> tuple[Alignment, LoopNest, RowMapping] | None:
    """A plan that turns what a graph reads across memory; None where it reads nothing so, or no block holds it.

    Args:
        graph: a stitch op's graph.
        alignment: the graph's. Where it is flat, rows are those of the result.
        device: a GPU.
    """
    if not may_cross(graph, device.choices) or len(graph.outputs[0].shape) < 2:
        return None
    for found in _aligned(graph, alignment):
        rows, sched = found.domain.rows, schedule(found)
        if not isinstance(rows, int) or len(sched.spaces) != 1 or not isinstance(sched.spaces[0], int):
            continue
        columns = sched.spaces[0]
        if columns < device.choices.least_transposed_columns or rows < device.choices.transposed_rows[0]:
            continue
        loads = dict.fromkeys(leaf for p in sched.passes for leaf in p.loads)
        leaves = tuple(leaf for leaf in loads if _is_crossed(found, columns, leaf))
        if not leaves:
            continue
        if graph.reduces:
            mapping = _whole_rows(found, sched, columns, leaves, device)
        else:
            mapping = _pieces(found, sched, columns, leaves, device)
        return None if mapping is None else (found, sched, mapping)
    return None


def _aligned(graph: StitchGraph, alignment: Alignment) -> Iterator[Alignment]:
    """The graph's alignment; where it is flat, those in which rows are over some of the result's first axes.

    Of images whose channels go from last to first, columns are all places of a channel.
    """
    if not alignment.domain.flat:
        yield alignment
        return
    shape = graph.outputs[0].shape
    for axes in range(len(shape) - 1, 0, -1):
        if shape[axes] == 1:
            continue
        try:
            found = align(graph, alignment.choices, Domain(product(shape[:axes])))
            yield replace(found, dominant=alignment.dominant)
        except Misaligned:
            continue


def may_cross(graph: StitchGraph, choices: Choices) -> bool:
    """Whether there are large static inputs, and something is read in an order that is not its own: cheap to see."""
    shapes = [extent for t in (*graph.inputs, *graph.outputs) for extent in t.shape]
    if not all(isinstance(extent, int) for extent in shapes):
        return False
    if all(static_bytes(tensor) < choices.transposed_bytes for tensor in graph.inputs):
        return False
    return any(
        axis.var in compat.free_vars(access.indices[-1])
        for op in graph.operators
        for access in op.accesses
        if access.indices and static_bytes(access.tensor) >= choices.transposed_bytes
        for axis in op.axes[:-1]
    )


def static_bytes(tensor: Tensor) -> int:
    """Of a tensor of static shape."""
    return static_extent(tensor.size) * item_bytes(tensor.dtype)


def _is_crossed(alignment: Alignment, columns: int, leaf: Leaf) -> bool:
    """Whether rows of an input are neighbours in memory, mostly, and columns are not."""
    tensor, point = leaf
    domain = alignment.domain
    if point.at is not At.INDEX or not is_streamed(domain.rows, leaf):
        return False
    if static_bytes(tensor) < alignment.choices.transposed_bytes or tensor.dtype == "bool":
        return False
    place = places_of(domain, leaf)
    rows = min(alignment.choices.transposed_sample, static_extent(domain.rows))
    down = [place(row, 0) for row in range(rows)]
    right = [place(0, column) for column in range(min(alignment.choices.transposed_sample, columns))]
    return _neighbours(down) * 8 >= 7 * (len(down) - 1) and _neighbours(right) * 2 < len(right) - 1


def places_of(domain: Domain, leaf: Leaf) -> Callable[[int, int], int | None]:
    """Tells for a row and a column which element of a tensor is read there; None where that is not known."""
    tensor, point = leaf
    flat, analyzer = as_expr(flatten(list(point.indices), tensor.shape)), Analyzer()

    def place(row: int, column: int) -> int | None:
        values = {domain.row: compat.const(row, "int64"), domain.column: compat.const(column, "int64")}
        return compat.int_value(analyzer.simplify(compat.substitute(flat, values)))

    return place


def _neighbours(places: Sequence[int | None]) -> int:
    """How many of some elements lie right behind the one before."""
    return sum(
        b is not None and a is not None and b - a == 1 for a, b in zip(places, places[1:], strict=False)
    )


def _pieces(
    alignment: Alignment, sched: LoopNest, columns: int, leaves: tuple[Leaf, ...], device: DeviceModel
) -> RowMapping | None:
    """Patches of rows that are not reduced, a block each."""
    rows, threads = static_extent(alignment.domain.rows), device.choices.transposed_threads
    vector = vector_length(alignment, sched, columns, device)
    wanted = -(-min(columns, device.choices.transposed_columns) // (threads * vector))
    # Others where fewer threads are idle then: of 96 columns two pieces of 64 are a third too many, of 196 four.
    chunks = min(
        (wanted, wanted + 1, *range(1, wanted)), key=lambda n: -(-columns // (threads * vector * n)) * n
    )
    splits = -(-columns // (threads * vector * chunks))
    mapping = RowMapping(
        threads,
        device.choices.transposed_rows[0],
        ByExtent([(columns, ColumnMapping(vector, chunks))]),
        row_splits=splits,
        crossed=leaves,
    )
    fits = crossed_bytes(sched, mapping) <= device.shared_per_sm // 4
    return mapping if fits and -(-rows // mapping.rows_per_block) * splits <= MOST_BLOCKS else None


def _whole_rows(
    alignment: Alignment,
    sched: LoopNest,
    columns: int,
    leaves: tuple[Leaf, ...],
    device: DeviceModel,
) -> RowMapping | None:
    """Patches of whole rows; a cluster of blocks shares rows of which too few fit a block."""
    all_rows = static_extent(alignment.domain.rows)
    room = _Room(alignment, sched, columns, device)
    wanted = [
        n
        for n in device.choices.transposed_rows
        if n * room.narrowest >= device.choices.least_transposed_bytes
    ]

    def found(splits: int) -> list[RowMapping]:
        made = (room.mapping(leaves, rows, splits) for rows in wanted)
        return [m for m in made if m is not None and room.resident(m)]

    def preference(mapping: RowMapping) -> tuple[bool, int]:
        """Lines of memory first, then few rows for the multiprocessor that has most of them."""
        rows = mapping.rows_per_block
        most = -(-all_rows // (rows * device.sms)) * rows
        return rows * room.narrowest < device.choices.transposed_line_bytes, most

    splits = [n for n in device.choices.transposed_splits if n <= device.max_cluster]
    for candidate in (room.mapping(leaves, rows, n) for rows in wanted for n in splits):
        staying = None if candidate is None else persistent(alignment, sched, candidate, device)
        if staying is not None:
            return staying
    alone = found(1)
    several = [m for m in alone if room.resident(m) >= 2]
    if several and not preference(best := min(several, key=preference))[0]:
        return room.bounded(best)
    shared = [m for n in splits for m in found(n)]
    for least in device.choices.transposed_resident if shared else ():
        fitting = [m for m in shared if room.resident(m) >= least]
        if fitting:
            return room.bounded(min(fitting, key=lambda m: (-m.rows_per_block, m.row_splits)))
    return room.bounded(min(several or alone, key=preference)) if alone else None


class _Room:
    """What a multiprocessor has room for: registers and shared memory of blocks that turn patches of whole rows."""

    def __init__(self, alignment: Alignment, sched: LoopNest, columns: int, device: DeviceModel):
        self.sched, self.columns, self.device = sched, columns, device
        self.vector = vector_length(alignment, sched, columns, device)
        self.words = tile_words(alignment, sched, columns)
        loads = {tensor for p in sched.passes for tensor, _ in p.loads}
        self.narrowest = min(item_bytes(tensor.dtype) for tensor in loads)

    def mapping(self, leaves: tuple[Leaf, ...], rows: int, splits: int) -> RowMapping | None:
        """So many rows a block, ``splits`` blocks a row; None where a thread has too few registers."""
        threads = self.device.choices.transposed_threads
        while rows * threads < self.device.choices.transposed_block:
            threads *= 2
        exchange = CrossBlockReduction.CLUSTER if splits > 1 else CrossBlockReduction.NONE
        while rows * threads <= self.device.max_threads_per_block:
            chunks = -(-self.columns // (splits * threads * self.vector))
            spaces = ByExtent([(self.columns, ColumnMapping(self.vector, chunks))])
            mapping = RowMapping(threads, rows, spaces, row_splits=splits, exchange=exchange, crossed=leaves)
            if chunks * self.vector * self.words <= self._tile_limit(mapping):
                return mapping
            threads *= 2
        return None

    def resident(self, mapping: RowMapping) -> int:
        """Blocks that a multiprocessor can be made to hold at once, roughly; 0 where there is no room for one.

        A thread has registers for its tiles in the dtype that is computed in (NVIDIA's compiler converts what half
        types keep early), and some besides. That is an estimate, and registers will be ``bounded`` by its result. So
        they are shared out without the units of the hardware, for which ``blocks_per_sm`` takes what a compiler has
        reported, and one block always has enough of them.
        """
        device = self.device
        shared = crossed_bytes(self.sched, mapping) + partial_bytes(self.sched, mapping)
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
        """The mapping with registers bounded such that as many blocks as there is room for are resident."""
        resident = self.resident(mapping)
        return replace(mapping, blocks_per_sm=resident) if resident > 1 else mapping

    def _tile_limit(self, mapping: RowMapping) -> float:
        """Registers that a thread may spend on its columns."""
        if mapping.block < self.device.max_threads_per_block:
            return self.device.choices.tile_registers
        return self.device.registers_per_sm // mapping.block - self.device.choices.largest_block_registers
