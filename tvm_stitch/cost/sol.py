# SPDX-License-Identifier: Apache-2.0
"""SOL (speed of light): a kernel's bytes, launch and barriers against the peaks of the device.

It compares ways of dividing a graph into kernels. They differ in the bytes that they move and in the number of
launches. Memory-intensive kernels are bound by bandwidth, so arithmetic is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..device import DeviceModel


@dataclass(frozen=True)
class Load:
    """Bytes that one stage of a kernel reads and writes, and the share of the bandwidth that its blocks can draw."""

    bytes: int
    share: float = 1.0


@dataclass(frozen=True)
class Work:
    """A stitch op's work: loads side by side in each phase.

    ``grid`` is True for a grid-wide plan, ``resident`` if its blocks stay for all tasks. Barriers divide its phases
    if ``barriers`` is True. Otherwise each phase is a kernel of its own.
    """

    phases: Sequence[Sequence[Load]]
    grid: bool = False
    resident: bool = False
    barriers: bool = True

    @property
    def bytes(self) -> int:
        """All bytes read and written."""
        return sum(load.bytes for phase in self.phases for load in phase)


def share_of(blocks: int, device: DeviceModel) -> float:
    """Return the share of the device's bandwidth that so many blocks, each on its own multiprocessor, can draw."""
    return min(1.0, blocks * device.choices.lone_block_shares / device.sms)


def moving_seconds(work: Work, device: DeviceModel) -> float:
    """Return the seconds in which data moves. The slowest stage decides when a phase ends."""
    rate = device.bandwidth * device.choices.copy_share
    if work.grid:
        rate *= device.choices.resident_share if work.resident else device.choices.side_by_side_share
    total = 0.0
    for phase in work.phases:
        together = sum(load.bytes for load in phase)
        alone = max((load.bytes / load.share for load in phase), default=0.0)
        total += max(together, alone) / rate
    return total


def seconds(work: Work, device: DeviceModel) -> float:
    """Return the seconds of a stitch op, its launches and barriers included."""
    between = device.choices.barrier_seconds if work.barriers else device.choices.launch_seconds
    return device.choices.launch_seconds + (len(work.phases) - 1) * between + moving_seconds(work, device)


def tail_seconds(work: Work, rows: int, device: DeviceModel) -> float:
    """Return the seconds for which the blocks of the last wave leave the device idle, of ``rows`` equal rows.

    Other work of as many seconds, in the same launch, takes no time.
    """
    block = max(device.choices.tail_block_bytes, work.bytes // max(1, rows))
    resident = max(
        1, min(device.threads_per_sm // device.choices.tail_block_threads, device.shared_per_sm // block)
    )
    wave = device.sms * resident * block
    return -work.bytes % wave / (device.bandwidth * device.choices.copy_share)
