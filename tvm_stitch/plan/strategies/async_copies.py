# SPDX-License-Identifier: Apache-2.0
"""Long rows that cp.async stages in shared memory, from which every pass reads them.

Registers then bound neither the data in flight nor the number of blocks that share a multiprocessor. Several blocks
hide each other's pauses: the wait for data, the reductions, the exchange of a cluster that shares a row. On an H200
with bfloat16 the figures compare us with copies to the fastest without copies. They are from
``scripts/bench_rows.py``, and from ``scripts/ab_splits.py --keep SHARED``::

    columns        4096        16384       32768       65536       131072      262144
    softmax                    128 / 134   130 / 152   130 / 184   131 / 187   134 / 216
    RMS norm                               129 / 132   131 / 148   139 / 149   145 / 164
    cross-entropy   62 /  93    63 /  82    64 /  72

With inputs that stay in the L2 cache (see :mod:`..gpu.l2_residency`) softmax of 65,536 and 131,072 columns takes 124
us. An RMS norm of 65,536, 131,072 and 262,144 columns takes 125, 126 and 133 us.

Longer rows that are only reduced are swept once (see :mod:`.online`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ... import compat
from ...config import StitchConfig
from ...cost.choices import Choices
from ...device import DeviceModel
from ...graph.dtype import item_bytes
from ...graph.extent import as_expr
from ..gpu.mapping import RowMapping
from ..gpu.occupancy import blocks_in_shared
from ..gpu.tile import MOST_BLOCKS, kept_in_shared, partial_bytes, read_again_from_cache, stage_bytes
from ..iteration.alignment import Alignment
from ..iteration.loops import Keep, LoopNest, is_streamed, schedule
from ..rows.candidate import Candidate, excess_seconds, once_seconds


def propose(alignment: Alignment, device: DeviceModel, config: StitchConfig) -> Candidate | None:
    """Propose asynchronous copies for many long rows, None if registers, or rows read again, are better.

    The estimate leaves out the exchange of a cluster: other blocks of the multiprocessor hide it.
    """
    rows = compat.int_value(as_expr(alignment.domain.rows))
    if not device.background_copies or alignment.domain.flat or not alignment.graph.reduces:
        return None
    if rows is None or rows < device.sms:
        return None
    sched = schedule(alignment, Keep.LOADS)
    if not sched.kept_loads or not all(isinstance(p.columns, int) for p in sched.passes):
        return None
    row_bytes = _row_bytes(sched)
    shared_late = _reads_late_what_rows_share(alignment, sched)
    written = any(p.outputs for p in sched.passes)
    wide = all(
        item_bytes(tensor.dtype) > device.choices.async_copy_item_bytes for tensor, _ in sched.kept_loads
    )
    if written and wide:
        return None
    longest = max(int(p.columns) for p in sched.passes)
    if longest < (
        device.choices.async_copy_columns if written else device.choices.async_copy_columns_unwritten
    ):
        return None
    if written and shared_late and row_bytes <= device.choices.register_row_bytes:
        return None
    clusters = [n for n in device.choices.async_copy_splits if n <= device.max_cluster]
    for splits, threads, resident in _shapes(row_bytes, written, shared_late, clusters, device.choices):
        if rows * splits > MOST_BLOCKS:
            continue
        mapping = _mapping(alignment, sched, device, splits, threads)
        held = _resident(sched, mapping, device) if mapping.shared else 0
        if held >= resident and rows * splits >= device.sms * held:
            once = once_seconds(alignment, sched, device) + excess_seconds(alignment, device)
            return Candidate(alignment, sched, mapping, device.choices.async_copy_time * once)
    return None  # blocks without others on their multiprocessor hide nothing


def _shapes(
    row_bytes: int, written: bool, shared_late: bool, clusters: list[int], choices: Choices
) -> Iterator[tuple[int, int, int]]:
    """Yield the blocks of a row, their threads, and how many a multiprocessor should hold at least, best first."""
    several, least = choices.async_copy_resident, choices.least_async_copy_resident
    if not written:
        threads = next(t for most, t in choices.async_copy_unwritten_threads if row_bytes <= most)
        yield from ((splits, threads, least) for splits in (1, *clusters))
    elif shared_late:
        yield from ((splits, choices.async_copy_late_threads, several) for splits in (1, *clusters))
        large = choices.async_copy_late_large_threads
        yield from ((splits, large, least) for splits in (*reversed(clusters), 1))
    else:
        yield 1, choices.async_copy_threads, least
        yield from ((splits, choices.async_copy_cluster_threads, several) for splits in clusters)
        yield from ((splits, choices.async_copy_threads, least) for splits in clusters)


def _row_bytes(sched: LoopNest) -> int:
    return sum(int(point.columns) * item_bytes(tensor.dtype) for tensor, point in sched.kept_loads)


def _reads_late_what_rows_share(alignment: Alignment, sched: LoopNest) -> bool:
    """Return whether passes behind a reduction read scales or offsets from the caches. More blocks hide such reads."""
    reduced = False
    for p in sched.passes:
        if reduced and any(not is_streamed(alignment.domain.rows, leaf) for leaf in p.loads):
            return True
        reduced = reduced or bool(p.reduces)
    return False


def _mapping(
    alignment: Alignment, sched: LoopNest, device: DeviceModel, splits: int, threads: int
) -> RowMapping:
    mapping = replace(read_again_from_cache(alignment, sched, device, splits, threads), blocks_per_sm=0)
    return kept_in_shared(sched, mapping, device)


def _resident(sched: LoopNest, mapping: RowMapping, device: DeviceModel) -> int:
    """Return the number of blocks whose rows a multiprocessor's shared memory holds.

    Threads and registers do not count. A few rows that all fit at once leave the device idle, however blocks are
    bounded.
    """
    return blocks_in_shared(device, stage_bytes(sched, mapping) + partial_bytes(sched, mapping))
