# SPDX-License-Identifier: Apache-2.0
"""Adaptive thread mapping on a GPU: which thread of which block handles which row and columns (AStitch 3.3, 4.3).

Many small rows share a block (horizontal packing). Long rows take more threads each, up to a whole block. Loads and
stores are vectors of up to 16 bytes wherever divisibility allows. A row may be split over several blocks as well
(task splitting, see :mod:`..strategies.split`).

The threads of a row are the power of two that gives each thread two full vectors, from 32 to half of the largest
block. Rows of up to 32 vectors take a slice of a warp, which is chosen by the fewest idle lanes. That was the fastest
on an H200 (layer norm and others, rows of 256 to 8192 columns). One vector leaves too little in flight, and many cost
registers and so occupancy.

Rows that crowd the registers (72 words a thread) get more threads. The largest block is for rows that half of it is
too small for. On an H200, 512 columns with 7 to 10 inputs alive took 69 to 71 us with 64 to 256 threads. They took 75
to 85 us with 512 threads, and 136 to 181 us with 1,024 (``python scripts/ab_threads.py --columns 512 --inputs
7,8,9,10``). One task a block was fastest at every size.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import gcd

from ... import compat
from ...compat import Analyzer
from ...cost.choices import Choices
from ...cost.mappings import packed_row_cost
from ...device import DeviceModel
from ...graph.dtype import compute_dtype, exchanged_dtype, item_bytes
from ...graph.extent import ByExtent, Extent, as_expr, ceildiv
from ...graph.ir import Operator
from ..iteration.alignment import Alignment
from ..iteration.contiguity import vectorizable
from ..iteration.domain import At
from ..iteration.loops import Keep, Leaf, LoopNest, is_streamed, schedule
from .mapping import ColumnMapping, CrossBlockReduction, RowMapping, Storage

MOST_BLOCKS = 2**31 - 1
"""The most blocks of a grid's first dimension."""
BARRIER_BYTES = 8
"""Bytes of a barrier in shared memory that counts arrivals."""


def full_vector(sched: LoopNest, columns: Extent, device: DeviceModel, pieces: Sequence[Leaf] = ()) -> int:
    """Return the elements of a 16-byte vector of the column space's smallest type.

    The result is at most 8, and no more than the device can move. The tensors of ``pieces`` count as if they lay in
    the order of the space.
    """
    sizes, most = [4, *(item_bytes(t.dtype) for t, _ in pieces)], 8
    for p in sched.over(columns):
        sizes += [item_bytes(t.dtype) for t, pt in p.loads if pt.at is At.FULL]
        sizes += [item_bytes(op.output.dtype) for op, pt in p.outputs if pt.at is At.FULL]
        moved = [t.dtype for t, _ in p.loads] + [op.output.dtype for op, _ in p.outputs]
        most = device.bfloat16_lanes if "bfloat16" in moved else most
    return min(most, 16 // min(sizes))


def vector_length(alignment: Alignment, sched: LoopNest, columns: Extent, device: DeviceModel) -> int:
    """Return the elements of a vector for every tensor of the column space: a power of two that divides the space.

    Multiples that the domain knows of symbols count for a symbolic column space.

    If all tensors as large as the domain lie in pieces of fewer elements, vectors are as short as these pieces. An
    example is a group norm whose channels are last. Longer vectors would be gathered element by element.
    """
    domain = alignment.domain
    moved = [
        leaf for p in sched.over(columns) for leaf in (*p.loads, *((op.output, at) for op, at in p.outputs))
    ]
    pieces = [leaf for leaf in moved if is_streamed(domain.rows, leaf)]
    whole = any(point.at is At.FULL for _, point in pieces)
    multiple = divisor(domain.in_multiples(columns))
    vector = gcd(full_vector(sched, columns, device), multiple)
    if whole:
        return vector
    shorter = gcd(full_vector(sched, columns, device, pieces), multiple)
    while shorter > 1:
        if any(vectorizable(domain, at.indices, t.shape, columns, shorter) for t, at in pieces):
            return shorter
        shorter //= 2
    return vector


def divisor(columns: Extent) -> int:
    """Return a number that certainly divides the extent."""
    if isinstance(columns, int):
        return columns
    modular = Analyzer().modular_set(as_expr(columns))
    return max(1, int(modular.coeff)) if int(modular.base) == 0 else 1


def tile_words(alignment: Alignment, sched: LoopNest, columns: Extent) -> float:
    """Return the registers that one column of the space costs a thread: the most alive before or after a pass.

    Values alive are the kept ones still to be read and the loads in flight. A pass reuses the registers of its last
    loads for its results. Shared values (a scale or bias) live for one vector only and are not counted.
    """
    passes = sched.over(columns)
    first: dict[object, int] = {}
    last: dict[object, int] = {}
    size: dict[object, float] = {}
    for i, p in enumerate(passes):
        keys: list[tuple[object, float]] = [
            (leaf, words_of(leaf[0].dtype)) for leaf in p.loads if is_streamed(alignment.domain.rows, leaf)
        ]
        kept = [k for k in [*p.values, *p.reads] if k in sched.kept_values]
        keys += [(k, words_of(compute_dtype(k[0].output.dtype))) for k in kept]
        for key, words in keys:
            first.setdefault(key, i)
            last[key], size[key] = i, words
    most = 0.5
    for i, p in enumerate(passes):
        loads = set(p.loads)
        before = sum(size[k] for k in size if last[k] >= i and (first[k] < i or k in loads))
        after = sum(size[k] for k in size if first[k] <= i < last[k])
        after += sum(0.25 * words_of(op.output.dtype) for op, _ in p.outputs)
        most = max(most, before, after)
    return most


def words_of(dtype: str) -> float:
    """Return the registers of an element as it is loaded, if vectors of it fill them."""
    return max(0.25, item_bytes(dtype) / 4)


def map_rows(
    alignment: Alignment, sched: LoopNest, device: DeviceModel, row_splits: int = 1, longest: int = 0
) -> RowMapping:
    """Return the thread mapping of a stitch op on a GPU whose rows take ``row_splits`` blocks each.

    Several blocks a row are for static shapes only. Their exchange of reduced values is decided later. Rows of
    symbolic length have at most ``longest`` columns. They are left out if ``longest`` is 0.
    """
    extents = sched.spaces
    vectors = [vector_length(alignment, sched, e, device) for e in extents]
    if alignment.domain.flat:
        flat = ((e, _flat_columns(v, e, device)) for e, v in zip(extents, vectors))
        return RowMapping(device.choices.flat_threads, 1, ByExtent(flat), split=True)
    rows = compat.int_value(as_expr(alignment.domain.rows))
    words = [tile_words(alignment, sched, e) for e in extents]
    # Of every space: its columns in a segment, the registers of a column, and the length of its vectors.
    known = [(e, e if isinstance(e, int) else longest, w, v) for e, w, v in zip(extents, words, vectors)]
    static = [(e, -(-columns // row_splits), w, v) for e, columns, w, v in known if columns]
    parts = None if rows is None else rows * row_splits
    threads = 1 if row_splits == 1 else 4 * device.warp
    for e, columns, wide, vector in static:
        full = full_vector(sched, e, device)
        threads = max(threads, _threads_for(columns, vector, full, wide, parts, device))
    if not alignment.graph.reduces and row_splits == 1:
        # One warp a row evaluates the row's values (a heavy one, broadcast) once.
        threads = min(threads, device.warp)
    rows_per_block, tasks = 1, 1
    if row_splits == 1:
        rows_per_block = _rows_per_block(threads, rows, device)
        if rows is not None:
            # One task a block was fastest on an H200 at every size. Blocks have more tasks only if the grid would
            # exceed its limit.
            tasks = -(-rows // (rows_per_block * MOST_BLOCKS))
    limit = register_limit(threads, device)
    chunks = [-(-columns // (vector * threads)) for _, columns, _, vector in static]
    fits = all(n == 1 or n * vector * wide <= limit for n, (_, _, wide, vector) in zip(chunks, static))
    spaces = ByExtent((e, ColumnMapping(vector, n)) for n, (e, _, _, vector) in zip(chunks, static))
    mapping = RowMapping(threads, rows_per_block, spaces, tasks=tasks, row_splits=row_splits)
    return mapping if fits else kept_in_shared(sched, in_steps(mapping, device.choices), device)


def register_limit(threads: int, device: DeviceModel) -> int:
    """Return the registers that the tiles of a thread may take in blocks of so many threads."""
    if threads == device.max_threads_per_block:
        return device.registers_per_sm // threads - device.choices.largest_block_registers
    large = threads >= device.choices.large_block
    return device.choices.long_row_registers if large else device.choices.small_block_registers


def _flat_columns(vector: int, columns: Extent, device: DeviceModel) -> ColumnMapping:
    """Return the columns of a thread if blocks share them: two vectors if all threads of a device get as many.

    Vectors of fewer columns are shorter. Small kernels take as long as one thread does, and a thread computes the
    elements of its vector one after the other.
    """
    if not isinstance(columns, int):
        return ColumnMapping(vector, 1)
    while vector > 1 and columns < vector * device.sms * device.choices.flat_threads_per_multiprocessor:
        vector //= 2
    filled = columns >= vector * device.choices.flat_vectors * device.sms * device.threads_per_sm
    return ColumnMapping(vector, device.choices.flat_vectors if filled else 1)


def in_steps(mapping: RowMapping, choices: Choices) -> RowMapping:
    """Split columns into steps of a few vectors a thread, if nothing is kept in registers."""
    most = choices.step_elements
    spaces = (
        (e, _stepped(ColumnMapping(m.vector, min(m.chunks, max(1, most // m.vector))), m.chunks))
        for e, m in mapping.columns.items()
    )
    return replace(mapping, columns=ByExtent(spaces))


def _stepped(m: ColumnMapping, vectors: int) -> ColumnMapping:
    """Return the same chunks, in as many steps as ``vectors`` vectors a thread take."""
    return ColumnMapping(m.vector, m.chunks, -(-vectors // m.chunks))


def any_length(alignment: Alignment, sched: LoopNest, device: DeviceModel) -> RowMapping:
    """Return a mapping for rows of any length: a large block steps through each, and reads again what passes share."""
    threads = device.max_threads_per_block // 2 if alignment.graph.reduces else device.warp
    spaces = []
    for e in sched.spaces:
        vector = vector_length(alignment, sched, e, device)
        chunks = max(1, device.choices.step_elements // vector)
        spaces.append((e, ColumnMapping(vector, chunks, ceildiv(e, threads * vector * chunks))))
    return RowMapping(threads, 1, ByExtent(spaces), storage=Storage.NOWHERE)


def read_again_from_cache(
    alignment: Alignment, sched: LoopNest, device: DeviceModel, row_splits: int, threads: int
) -> RowMapping:
    """Return a mapping whose rows are read again in small steps. The caller bounds how many rows are begun at once.

    ``sched`` keeps nothing. Blocks have few registers, so more of them are resident than of blocks that hold a row.
    They hide each other's pauses better.
    """
    spaces = []
    for columns in sched.spaces:
        assert isinstance(columns, int)
        vector = vector_length(alignment, sched, columns, device)
        vectors = -(-columns // (row_splits * threads * vector))
        spaces.append(
            (columns, _stepped(ColumnMapping(vector, min(vectors, device.choices.cached_chunks)), vectors))
        )
    return RowMapping(
        threads,
        1,
        ByExtent(spaces),
        storage=Storage.CACHE,
        row_splits=row_splits,
        exchange=CrossBlockReduction.CLUSTER if row_splits > 1 else CrossBlockReduction.NONE,
        blocks_per_sm=device.choices.cached_threads // threads,
    )


def kept_in_shared(sched: LoopNest, mapping: RowMapping, device: DeviceModel) -> RowMapping:
    """Return the mapping with values in shared memory if a block's values fit, else with values nowhere.

    Steps are small enough not to cover much more than a block's columns. Staged values have room for one row, so a
    block of several rows keeps nothing.
    """
    span = mapping.threads * mapping.row_splits

    def staged(columns: Extent, m: ColumnMapping) -> ColumnMapping:
        assert isinstance(m.steps, int)
        vectors = m.steps * m.chunks
        if isinstance(columns, int):
            vectors = -(-columns // (m.vector * span))
        fitting = (c for c in device.choices.staged_chunks if c <= m.chunks)
        chunks = min(fitting, key=lambda c: (-(-vectors // c) * c, -c))
        return _stepped(ColumnMapping(m.vector, chunks), vectors)

    spaces = ByExtent((e, staged(e, m)) for e, m in mapping.columns.items())
    copied = device.background_copies and bool(sched.kept_loads)
    in_shared = replace(mapping, columns=spaces, storage=Storage.SHARED, async_copies=copied)
    most = device.shared_per_block
    if mapping.blocks_per_sm:
        most = min(most, device.shared_per_sm // mapping.blocks_per_sm - device.shared_reserved)
    reserve = partial_bytes(sched, mapping) + device.choices.shared_slack_bytes
    room = most - max(device.choices.least_shared_reserve_bytes, reserve)
    fits = mapping.rows_per_block == 1 and 0 < stage_bytes(sched, in_shared) <= room
    return in_shared if fits else replace(mapping, storage=Storage.NOWHERE)


def partial_bytes(sched: LoopNest, mapping: RowMapping, rescaled: Collection[Operator] = ()) -> int:
    """Return the bytes of shared memory for partial results.

    If a row spans several warps, each warp and reduction has one partial result. The slots of a cluster's exchange
    count too. Reductions that are folded together have partial results at the same time. These are the reductions of
    a pass, or of a level if blocks exchange them. ``rescaled`` sums have theirs together with the level before. Later
    reductions use the same memory.
    """
    if mapping.threads <= 32 or mapping.exchange is CrossBlockReduction.CLUSTER:
        return exchange_bytes(sched, mapping)
    rejoined = {p.level for p in sched.passes if any(op in rescaled for op in p.reduces)}
    folded: dict[tuple[int, int], int] = {}
    for i, p in enumerate(sched.passes):
        alone = mapping.exchange is CrossBlockReduction.NONE and not rejoined & {p.level, p.level + 1}
        together = (p.level - (p.level in rejoined), i if alone else 0)
        folded[together] = folded.get(together, 0) + sum(
            item_bytes(exchanged_dtype(op.output.dtype)) for op in p.reduces
        )
    return mapping.block // 32 * max(folded.values(), default=0) + exchange_bytes(sched, mapping)


def exchange_bytes(sched: LoopNest, mapping: RowMapping) -> int:
    """Return the bytes of a block's shared memory that a cluster's exchange takes.

    They hold a slot for each row, reduction, segment and warp, and a barrier for each level of reductions. A slot has
    8 bytes if any reduction accumulates in 8, else 4. Persistent blocks have other slots for every group of rows.
    """
    if mapping.exchange is not CrossBlockReduction.CLUSTER:
        return 0
    sizes = [item_bytes(exchanged_dtype(op.output.dtype)) for p in sched.passes for op in p.reduces]
    levels = {p.level for p in sched.passes if p.reduces}
    parts = mapping.row_splits * mapping.warps
    slots = max(sizes, default=0) * len(sizes) * parts * mapping.rows_per_block
    return mapping.iterations * (slots + BARRIER_BYTES * len(levels))


def settled(
    alignment: Alignment, sched: LoopNest, mapping: RowMapping, device: DeviceModel
) -> tuple[LoopNest, RowMapping]:
    """Return a schedule and mapping that agree on where values stay.

    Loads that do not fit registers try shared memory first.
    """
    if mapping.keep:
        return sched, mapping
    if mapping.storage is Storage.CACHE:
        return schedule(alignment, Keep.NOTHING), mapping
    loads = schedule(alignment, Keep.LOADS)
    in_shared = kept_in_shared(loads, mapping, device)
    return (loads if in_shared.keep else schedule(alignment, Keep.NOTHING)), in_shared


def stage_bytes(sched: LoopNest, mapping: RowMapping) -> int:
    """Return the shared memory that a row's kept values and loads would take: the most alive during a pass."""
    size: dict[object, int] = {}
    for op, point in sched.kept_values:
        size[(op, point)] = mapping.block_columns(point.columns) * item_bytes(compute_dtype(op.output.dtype))
    for tensor, point in sched.kept_loads:
        size[(tensor, point)] = mapping.block_columns(point.columns) * item_bytes(tensor.dtype)
    used = [{k for k in [*p.values, *p.reads, *p.loads] if k in size} for p in sched.passes]
    most = 0
    for i in range(len(used)):
        alive = {k for u in used[: i + 1] for k in u} & {k for u in used[i:] for k in u}
        most = max(most, sum(size[k] for k in alive))
    return most


def _threads_for(
    columns: int, vector: int, full: int, words: float, rows: int | None, device: DeviceModel
) -> int:
    """Return the threads for a row of ``columns`` columns, moved by vectors of ``vector``.

    ``full`` is the length of a vector if all were aligned.

    Two full vectors a thread were best on an H200 at every row length from 256 to 8192. One leaves too little in
    flight, and many need registers that cost occupancy. Blocks of 1024 threads are left to rows that need them.
    """
    vecs = -(-columns // vector)
    most = device.max_threads_per_block
    if vecs <= 32:
        small = [t for t in (1, 2, 4, 8, 16, 32) if t <= vecs * 2]
        threads = min(small, key=lambda t: (packed_row_cost(vecs, t, vector, words, device.choices), -t))
    else:
        power = 1 << max(0, -(-columns // (2 * full)) - 1).bit_length()  # the least that is not smaller
        threads = min(max(32, power), most // 2)

    def crowded(limit: float) -> bool:
        return -(-vecs // threads) * vector * words > limit

    while threads < most // 2 and crowded(device.choices.tile_registers):
        threads *= 2
    if most // 2 <= threads < most and crowded(device.choices.largest_block_from_registers):
        threads = most
    if rows is not None:  # few rows: more threads each, so that the device is busy
        wanted = device.sms * device.choices.busy_threads
        while threads < most and rows * threads < wanted and threads * 2 <= vecs:
            threads *= 2
    return threads


def _rows_per_block(threads: int, rows: int | None, device: DeviceModel) -> int:
    per_block = max(1, device.choices.small_block // threads)
    if rows is not None:
        wanted = device.sms * device.choices.blocks_per_multiprocessor
        least = max(threads, device.choices.smallest_block)
        while per_block * threads > least and -(-rows // per_block) < wanted:
            per_block //= 2
    return max(per_block, -(-device.warp // threads))
