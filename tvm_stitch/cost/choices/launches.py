# SPDX-License-Identifier: Apache-2.0
"""Launches, barriers and bandwidth of a GPU, as times and shares that were measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LaunchChoices:
    """Launches, barriers and bandwidth of a GPU, as times and shares that were measured."""

    # -- time on a GPU: launches, barriers, bandwidth ------------------------------------------------------------------
    launch_seconds: float = 2.5e-6
    """Seconds from one kernel of a stream to the next: 2 to 3 us."""
    launch_doubt_seconds: float = 0.5e-6
    """How far that figure may be off. Decisions that close go to fewer launches, which are certain."""
    barrier_seconds: float = 1.3e-6
    """Seconds of a grid barrier between two phases: 1.0 to 1.3 us (docs/results, "What a barrier costs")."""
    grid_exchange_seconds: float = 2.5e-6
    """Seconds in which all blocks of a row combine partial results through device memory: a grid barrier, and the way
    of the results to memory and back, which phases pay for in bytes instead. All reductions of a level together."""
    cluster_exchange_seconds: float = 0.6e-6
    """The same through the shared memory of a cluster: stores that a barrier there counts, and who waits for it."""
    cluster_wave_seconds: float = 1.5e-6
    """The same for each further wave of clusters, however many blocks share a multiprocessor: starting them is in it,
    and that blocks which hold their part of a row load, reduce and store by turns: 1.2 to 2 us
    (``scripts/ab_splits.py``)."""
    streamed_wave_seconds: float = 0.9e-6
    """The same of blocks that read their part again, in small steps."""
    copy_share: float = 0.86
    """Of the datasheet's bandwidth what a device copy reaches, and a kernel on one row domain with it (4.15 TB/s)."""
    side_by_side_share: float = 0.95
    """Of a copy's bandwidth what is left where parts share a launch: one block shape for all of them, of many
    threads."""
    resident_share: float = 0.87
    """The same where the grid has to be resident as a whole (layer-norm backward: 145 us at a copy's pace, 166 so)."""
    lone_block_shares: float = 2.5
    """How many times its share of the bandwidth a multiprocessor draws while most others are idle."""
    tail_block_bytes: int = 16 * 1024
    """Bytes that a block of 512 threads with two vectors each moves at once; for the estimate of a last wave."""
    tail_block_threads: int = 512
    """Threads of a block in that estimate."""
