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
    """Possible error of that figure. Decisions that close go to fewer launches, which are certain."""
    barrier_seconds: float = 1.3e-6
    """Seconds of a grid barrier between two phases: 1.0 to 1.3 us (docs/results, "What a barrier costs")."""
    grid_exchange_seconds: float = 2.5e-6
    """Seconds in which all blocks of a row combine partial results of all reductions of a level through device
    memory. They are a grid barrier, and the way of the results to memory and back. Phases pay for that way in bytes
    instead."""
    cluster_exchange_seconds: float = 0.6e-6
    """The same through the shared memory of a cluster: stores that a barrier there counts, and the wait for it."""
    cluster_wave_seconds: float = 1.5e-6
    """The same for each further wave of clusters, for any number of blocks that share a multiprocessor. It includes
    starting the clusters. Blocks that hold their slice of a row load, reduce and store one after the other, which it
    includes too. It was 1.2 to 2 us (``scripts/ab_splits.py``)."""
    streamed_wave_seconds: float = 0.9e-6
    """The same for blocks that read their slice again, in small steps."""
    copy_share: float = 0.86
    """Share of the datasheet's bandwidth that a device copy reaches, and so does a kernel on one row domain (4.15
    TB/s)."""
    side_by_side_share: float = 0.95
    """Share of a copy's bandwidth that remains if stages share a launch: they all have one block shape, of many
    threads."""
    resident_share: float = 0.87
    """The same if the grid has to be resident as a whole (layer-norm backward: 145 us at a copy's pace, 166
    measured)."""
    lone_block_shares: float = 2.5
    """Factor by which a multiprocessor exceeds its share of the bandwidth while most others are idle."""
    tail_block_bytes: int = 16 * 1024
    """Bytes that a block of 512 threads with two vectors each moves at once. The estimate of a last wave uses it."""
    tail_block_threads: int = 512
    """Threads of a block in that estimate."""
