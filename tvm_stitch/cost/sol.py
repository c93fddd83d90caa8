# SPDX-License-Identifier: Apache-2.0
"""SOL (speed of light): a kernel's bytes, launch and barriers against the peaks of the device.

It compares ways of dividing a graph into kernels, where all of them move data and differ by how much and in how many
launches. Memory-intensive kernels are bound by bandwidth, so arithmetic is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..device import DeviceModel

LAUNCH_SECONDS = 2.5e-6
"""From one kernel of a stream to the next: 2 to 3 us."""
LAUNCH_DOUBT = 0.5e-6
"""How far that figure may be off. Decisions that close go to fewer launches, which are certain."""
BARRIER_SECONDS = 1.3e-6
"""A grid barrier, on an H200."""
COPY_SHARE = 0.86
"""Of the datasheet's bandwidth what a device copy reaches, and a kernel on one row domain with it (H200: 4.15 TB/s)."""
SIDE_BY_SIDE = 0.95
"""What is left of a copy's bandwidth where parts share a launch: one block shape for all of them, of many threads."""
RESIDENT = 0.87
"""The same where the grid has to be resident as a whole (layer-norm backward: 145 us at a copy's pace, 166 so)."""
BLOCK_BYTES = 16 * 1024
"""What a block of 512 threads with two vectors each moves at once."""
RESIDENT_THREADS = 512
ALONE = 2.5
"""How many times its share of the bandwidth a multiprocessor draws while most others are idle."""


@dataclass(frozen=True)
class Load:
    """What one part of a kernel reads and writes, and the share of the bandwidth that its blocks can draw."""

    bytes: int
    share: float = 1.0


@dataclass(frozen=True)
class Work:
    """A stitch op's work: loads side by side in each phase.

    ``grid`` is True for a grid-wide plan, ``resident`` where its blocks stay for all tasks. Its phases are divided by
    ``barriers``, or else are kernels of their own.
    """

    phases: Sequence[Sequence[Load]]
    grid: bool = False
    resident: bool = False
    barriers: bool = True

    @property
    def bytes(self) -> int:
        """Everything read and written."""
        return sum(load.bytes for phase in self.phases for load in phase)


def share_of(blocks: int, device: DeviceModel) -> float:
    """The share of the device's bandwidth that so many blocks, each on a multiprocessor of its own, can draw."""
    return min(1.0, blocks * ALONE / device.sms)


def moving_seconds(work: Work, device: DeviceModel) -> float:
    """Seconds in which data moves; the slowest part of a phase is waited for."""
    rate = device.bandwidth * COPY_SHARE
    if work.grid:
        rate *= RESIDENT if work.resident else SIDE_BY_SIDE
    found = 0.0
    for phase in work.phases:
        together = sum(load.bytes for load in phase)
        alone = max((load.bytes / load.share for load in phase), default=0.0)
        found += max(together, alone) / rate
    return found


def seconds(work: Work, device: DeviceModel) -> float:
    """Seconds of a stitch op, its launches and barriers included."""
    between = BARRIER_SECONDS if work.barriers else LAUNCH_SECONDS
    return LAUNCH_SECONDS + (len(work.phases) - 1) * between + moving_seconds(work, device)


def tail_seconds(work: Work, rows: int, device: DeviceModel) -> float:
    """Seconds for which the blocks of the last wave leave the device idle, of ``rows`` equal rows.

    Other work of as many seconds, in the same launch, takes no time.
    """
    block = max(BLOCK_BYTES, work.bytes // max(1, rows))
    resident = max(1, min(device.threads_per_sm // RESIDENT_THREADS, device.shared_per_sm // block))
    wave = device.sms * resident * block
    return -work.bytes % wave / (device.bandwidth * COPY_SHARE)
