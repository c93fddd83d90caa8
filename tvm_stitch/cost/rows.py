# SPDX-License-Identifier: Apache-2.0
"""Estimated time of rows on a GPU: the memory traffic of the busiest multiprocessor, and exchanges between blocks.

It compares mappings of one stitch op. All of them have the launch and the computation in common, so these are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..device import DeviceModel
from .choices import Choices


@dataclass(frozen=True)
class RowWork:
    """Rows and how blocks take them.

    Attributes:
        rows: the number of rows.
        rows_per_block: rows of a block.
        row_splits: blocks of a row.
        first: bytes of a row that are read for the first time, or written.
        again: bytes of a row that are read again.
        elements: number of elements that a block computes of its rows, in all passes.
        resident: blocks of a multiprocessor that are resident at once.
        at_work: blocks of a multiprocessor that read rows at once.
        exchanges: number of times that the blocks of a row combine results.
        in_cluster: whether they do so in a cluster. Otherwise they use a grid barrier.
        keeps: whether a row stays on chip between passes.
        staged: whether it stays in shared memory.
        spills: whether threads have too few registers for it.
    """

    rows: int
    rows_per_block: int
    row_splits: int
    first: int
    again: int
    elements: int
    resident: int
    at_work: int
    exchanges: int = 0
    in_cluster: bool = False
    keeps: bool = True
    staged: bool = False
    spills: bool = False


def row_seconds(work: RowWork, device: DeviceModel) -> float:
    """Return the estimated seconds of rows."""
    choices = device.choices
    grid = -(-work.rows // work.rows_per_block) * work.row_splits
    busiest = -(-grid // device.sms)
    waves = -(-grid // (device.sms * work.resident))
    at_once = min(work.rows, device.sms * work.at_work * work.rows_per_block / work.row_splits)
    row_bytes = work.first + work.again * cached_share(at_once * work.first / device.l2_bytes, choices)
    block_bytes = row_bytes * work.rows_per_block / work.row_splits
    seconds = busiest * block_bytes * device.sms / (choices.copy_share * device.bandwidth)
    if work.spills:
        seconds *= choices.spill_slowdown
    if work.resident == 1 and busiest > 1 and work.keeps:
        if work.staged:
            seconds *= choices.staged_slowdown
        seconds += busiest * work.elements * choices.lone_element_seconds
    if work.exchanges and work.in_cluster:
        a_wave = choices.cluster_wave_seconds if work.keeps else choices.streamed_wave_seconds
        seconds += work.exchanges * (choices.cluster_exchange_seconds + (waves - 1) * a_wave)
    elif work.exchanges:
        seconds += work.exchanges * choices.grid_exchange_seconds
    return seconds


def cached_share(filled: float, choices: Choices) -> float:
    """Return the cost of reading bytes again, relative to reading them from memory.

    Args:
        filled: share of the second-level cache that the rows at work fill.
        choices: the device's constants of choice.
    """
    beyond = (filled - choices.cache_fill) / (1.0 - choices.cache_fill)
    return choices.cached_share + (1.0 - choices.cached_share) * min(1.0, max(0.0, beyond))


def copy_seconds(size: int, device: DeviceModel) -> float:
    """Return the seconds in which ``size`` bytes move at a copy's pace."""
    return size / (device.choices.copy_share * device.bandwidth)
