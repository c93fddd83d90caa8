# SPDX-License-Identifier: Apache-2.0
"""Task splitting: how many blocks share a row, and how they combine their reductions (AStitch 4.3).

The paper splits rows that are fewer than the blocks of a wave and longer than 1024 elements, and packs others. Here
such rows are split if an estimate says that the time saved is more than the exchange costs. Rows too long for the
registers of one block are spread over a cluster that can hold them, for any number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ... import compat
from ...config import StitchConfig
from ...cost.rows import RowWork, row_seconds
from ...device import DeviceModel
from ...graph.dtype import item_bytes
from ...graph.extent import ByExtent, Extent, as_expr, static_extent
from ..gpu.mapping import ColumnMapping, CrossBlockReduction, RowMapping, Storage
from ..gpu.occupancy import MAX_REGISTERS, blocks_per_sm
from ..gpu.tile import (
    MOST_BLOCKS,
    kept_in_shared,
    map_rows,
    partial_bytes,
    read_again_from_cache,
    settled,
    stage_bytes,
    tile_words,
    vector_length,
)
from ..iteration.alignment import Alignment
from ..iteration.loops import Keep, LoopNest, is_streamed, schedule
from ..iteration.rescaled import exchanged_levels, with_fewest_exchanges
from ..rows.candidate import Candidate, are_static, excess_seconds, once_seconds, row_traffic


def propose(alignment: Alignment, device: DeviceModel, config: StitchConfig) -> Candidate:
    """Propose one block or several for each row, by the fewest estimated seconds. The strategy serves all rows."""
    sched = schedule(alignment)
    sched, mapping = settled(alignment, sched, choose_mapping(alignment, sched, device, config), device)
    seconds = math.inf
    if alignment.domain.flat and are_static(alignment, sched):
        seconds = once_seconds(alignment, sched, device) + excess_seconds(alignment, device)
    elif are_static(alignment, sched):
        seconds = _seconds(alignment, sched, mapping, device) + excess_seconds(alignment, device)
    if mapping.exchange is not CrossBlockReduction.NONE:
        sched = with_fewest_exchanges(alignment, sched)
    return Candidate(alignment, sched, mapping, seconds)


def choose_mapping(
    alignment: Alignment, sched: LoopNest, device: DeviceModel, config: StitchConfig
) -> RowMapping:
    """Return the thread mapping of a stitch op on a GPU. Rows of static length may be split."""
    best = map_rows(alignment, sched, device)
    rows = compat.int_value(as_expr(alignment.domain.rows))
    lengths = [p.columns for p in sched.passes]
    static = [e for e in lengths if isinstance(e, int)]
    if rows is None or alignment.domain.flat or len(static) < len(lengths):
        return best
    if max(static, default=0) <= device.choices.split_columns:
        return best
    short = row_traffic(alignment, sched).read <= device.choices.register_row_bytes
    if short and rows >= device.sms and best.storage is Storage.REGISTERS:
        return best
    time = estimate(alignment, sched, best, device)
    gain = device.choices.split_gain
    for mapping in _candidates(alignment, sched, device, config, rows, max(static)):
        seconds = estimate(alignment, sched, mapping, device)
        if seconds < gain * time:
            best, time, gain = mapping, seconds, device.choices.fewer_blocks_gain
    reread = schedule(alignment, Keep.NOTHING)
    for mapping in _from_cache(alignment, reread, device, rows):
        seconds = _seconds(alignment, reread, mapping, device)
        if seconds < device.choices.fewer_blocks_gain * time:
            best, time = mapping, seconds
    return best


def _from_cache(
    alignment: Alignment, sched: LoopNest, device: DeviceModel, rows: int
) -> Iterator[RowMapping]:
    """Yield mappings that read rows again from the second-level cache, fewest blocks a row first. Nothing is kept."""
    if not alignment.graph.reduces or rows < device.sms:
        return
    row_bytes = row_traffic(alignment, sched).first
    for row_splits, threads in device.choices.cached_blocks:
        if row_splits > device.max_cluster or rows > MOST_BLOCKS // row_splits:
            continue
        mapping = read_again_from_cache(alignment, sched, device, row_splits, threads)
        if device.sms * mapping.blocks_per_sm * row_bytes <= device.l2_bytes * row_splits:
            yield mapping


def _candidates(
    alignment: Alignment, sched: LoopNest, device: DeviceModel, config: StitchConfig, rows: int, longest: int
) -> Iterator[RowMapping]:
    """Yield split mappings worth an estimate, fewest blocks a row first."""
    reduces = bool(alignment.graph.reduces)
    most = device.max_cluster
    if not reduces:  # Nothing is exchanged: as many blocks as fill the device.
        most = max(1, device.choices.blocks_to_fill * device.sms // rows)
    row_splits = 2
    most = min(most, MOST_BLOCKS // rows)
    while row_splits <= most and longest >= row_splits * device.choices.split_columns // 2:
        exchange = CrossBlockReduction.CLUSTER if reduces else CrossBlockReduction.NONE
        mapping = replace(map_rows(alignment, sched, device, row_splits), exchange=exchange)
        # The storage was decided without the slots of the exchange.
        yield kept_in_shared(sched, mapping, device) if mapping.shared else mapping
        row_splits *= 2
    if reduces and config.grid_barriers and device.cooperative:
        grid = grid_mapping(alignment, sched, device)
        if grid is not None:
            yield grid


def grid_mapping(alignment: Alignment, sched: LoopNest, device: DeviceModel) -> RowMapping | None:
    """Return a mapping of rows over all blocks that the device holds at once, None if two blocks a row are too many.

    Values stay in registers if all of a block's fit. Otherwise the plan keeps them in shared memory, or reads them
    again.
    """
    rows = compat.int_value(as_expr(alignment.domain.rows))
    assert rows is not None
    vectors = {int(e): vector_length(alignment, sched, e, device) for e in sched.spaces}
    streamed = None
    for threads, blocks in device.choices.split_block_shapes:
        if threads * blocks > device.threads_per_sm:
            continue
        most = max(-(-e // (threads * vector)) for e, vector in vectors.items())
        row_splits = min(device.sms * blocks // rows, most)
        if row_splits < 2:
            continue
        spaces = ByExtent(
            (e, ColumnMapping(v, -(-e // (row_splits * threads * v)))) for e, v in vectors.items()
        )
        mapping = RowMapping(
            threads, 1, spaces, row_splits=row_splits, exchange=CrossBlockReduction.GRID, blocks_per_sm=blocks
        )
        registers = device.registers_per_sm // (threads * blocks)
        if _tile_registers(alignment, sched, mapping) + device.choices.overhead_registers <= registers:
            return mapping
        streamed = streamed or mapping
    if streamed is None:
        return None

    def in_flight(columns: Extent, m: ColumnMapping) -> ColumnMapping:
        words = m.vector * _loads_words(alignment, sched, columns)
        chunks = max(1, min(m.chunks, int(device.choices.streamed_words // words)))
        return ColumnMapping(m.vector, chunks, -(-m.chunks // chunks))

    spaces = ByExtent((e, in_flight(e, m)) for e, m in streamed.columns.items())
    return kept_in_shared(sched, replace(streamed, columns=spaces), device)


def _tile_registers(alignment: Alignment, sched: LoopNest, mapping: RowMapping) -> float:
    """Return the registers of a thread that hold tiles: of all column spaces if they are kept, else of the widest."""
    if mapping.storage is Storage.REGISTERS:
        return sum(m.chunks * m.vector * tile_words(alignment, sched, e) for e, m in mapping.columns.items())
    return max(m.chunks * m.vector * _loads_words(alignment, sched, e) for e, m in mapping.columns.items())


def _loads_words(alignment: Alignment, sched: LoopNest, columns: Extent) -> float:
    """Return the registers that the loads of one column take, in the pass of the space that loads most."""
    most = 0.25
    for p in sched.over(columns):
        sizes = [item_bytes(leaf[0].dtype) for leaf in p.loads if is_streamed(alignment.domain.rows, leaf)]
        most = max(most, sum(sizes) / 4)
    return most


def estimate(alignment: Alignment, sched: LoopNest, mapping: RowMapping, device: DeviceModel) -> float:
    """Return the approximate seconds of a kernel.

    They are the busiest multiprocessor's share of the memory traffic, and exchanges.

    It compares mappings of one stitch op. The launch and the computation are common to all of them, and left out.
    """
    return _seconds(alignment, *settled(alignment, sched, mapping, device), device)


def _seconds(alignment: Alignment, sched: LoopNest, mapping: RowMapping, device: DeviceModel) -> float:
    """Return the estimate for a schedule and a mapping that agree."""
    rows = compat.int_value(as_expr(alignment.domain.rows))
    assert rows is not None
    resident = _resident(alignment, sched, mapping, device)
    # Blocks without a bound are limited only by the threads of a multiprocessor.
    at_work = resident if mapping.keep or mapping.blocks_per_sm else device.threads_per_sm // mapping.block
    traffic = row_traffic(alignment, sched)
    exchanges = 0
    if mapping.exchange is not CrossBlockReduction.NONE:
        exchanges = exchanged_levels(alignment, with_fewest_exchanges(alignment, sched))
    work = RowWork(
        rows,
        mapping.rows_per_block,
        mapping.row_splits,
        traffic.first,
        traffic.again,
        _block_elements(sched, mapping),
        resident,
        at_work,
        exchanges,
        in_cluster=mapping.exchange is CrossBlockReduction.CLUSTER,
        keeps=mapping.keep,
        staged=mapping.shared,
        spills=_spills(alignment, sched, mapping, device),
    )
    return row_seconds(work, device)


def _resident(alignment: Alignment, sched: LoopNest, mapping: RowMapping, device: DeviceModel) -> int:
    """Return the approximate number of blocks of a multiprocessor that work at once.

    It is the bound of the mapping if there is one. Otherwise it is ``blocks_per_sm`` for the estimated registers of
    tiles. The compiler spills registers that one block has no room for.
    """
    if mapping.blocks_per_sm:
        return mapping.blocks_per_sm
    registers = int(_tile_registers(alignment, sched, mapping)) + device.choices.overhead_registers
    registers = min(registers, MAX_REGISTERS, device.registers_per_sm // mapping.block)
    shared = partial_bytes(sched, mapping) + (stage_bytes(sched, mapping) if mapping.shared else 0)
    return max(1, blocks_per_sm(device, mapping.block, registers, shared))


def _spills(alignment: Alignment, sched: LoopNest, mapping: RowMapping, device: DeviceModel) -> bool:
    """Return whether a thread has approximately fewer registers than its tiles need in the dtype of computation.

    NVIDIA's compiler converts kept values of half types early.
    """
    if mapping.storage is not Storage.REGISTERS:
        return False
    narrowest = min(item_bytes(t.dtype) for t in (*alignment.graph.inputs, *alignment.graph.outputs))
    tile = _tile_registers(alignment, sched, mapping)
    elements = max(m.chunks * m.vector for m in mapping.columns.values())
    needed = max(tile, elements if narrowest == 2 else 0) + device.choices.largest_block_registers
    return needed > min(MAX_REGISTERS, device.registers_per_sm // mapping.block)


def _block_elements(sched: LoopNest, mapping: RowMapping) -> int:
    """Return the number of elements that a block computes of its rows, over all passes."""
    columns = sum(static_extent(p.columns) for p in sched.passes)
    return mapping.rows_per_block * -(-columns // mapping.row_splits)
