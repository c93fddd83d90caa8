# SPDX-License-Identifier: Apache-2.0
"""Relative costs by which mappings of a GPU's threads are compared, an idle lane for every busy one being 1."""

from __future__ import annotations

from .choices import Choices


def packed_row_cost(vectors: int, threads: int, vector: int, words: float, choices: Choices) -> float:
    """Return the cost of so many threads, at most a warp, for a row of so many vectors of ``vector`` elements.

    ``words`` are the registers that a column costs a thread.
    """
    chunks = -(-vectors // threads)
    idle = chunks * threads / vectors - 1.0
    crowded = max(0.0, chunks * vector * words / choices.tile_registers - 1.0) * choices.crowded_cost
    scattered = max(0.0, 1.0 - threads * vector * 4 / choices.sector_bytes) * choices.uncoalesced_cost
    return idle + crowded + scattered + (choices.chunk_cost * abs(chunks - 2) if threads < 32 else 0)


def tile_cost(idle: float, threads: int, vector: int, rows: float, choices: Choices) -> float:
    """Return the cost of threads for a tile of columns.

    ``idle`` is the fraction of idle lanes, ``rows`` the number of rows of a block.
    """
    scattered = max(0.0, 1.0 - threads * vector * 4 / choices.tile_line_bytes) * choices.tile_uncoalesced_cost
    return idle + scattered + choices.tile_rows_cost * rows


def row_cost(
    idle: float, work: float, over: float, threads: int, vector: int, columns: int, choices: Choices
) -> float:
    """Return the cost of threads for a row's columns. Threads that read a whole row read next to those of the next.

    Args:
        idle: the fraction of idle lanes. It counts as far as there is ``work`` for all (0 to 1).
        work: see ``idle``.
        over: the factor by which the tiles exceed the registers, 0 if they fit.
        threads: number of threads of a row.
        vector: elements of 4 bytes that each loads at once.
        columns: number of columns of a row.
    """
    line = min(choices.line_bytes, columns * 4)
    scattered = max(0.0, 1.0 - threads * vector * 4 / line) * choices.uncoalesced_cost
    return idle * work + (choices.spilled_cost + over if over else 0.0) + scattered


def reduction_cost(warps: int, choices: Choices) -> float:
    """Return the cost of rows that so many warps reduce together."""
    return choices.block_reduction_cost + choices.warp_reduction_cost * warps.bit_length()


def idle_device_cost(busy: float, steps: float, least: float, choices: Choices) -> float:
    """Return the cost of a stage with fewer groups of rows than multiprocessors.

    Args:
        busy: the fraction of multiprocessors with a group.
        steps: vectors that a thread takes one after the other.
        least: the same if all of the device shared the stage.
    """
    longer = (max(1.0, steps) + choices.steps_of_latency) / (max(1.0, least) + choices.steps_of_latency) - 1.0
    return max((1.0 - busy) * choices.idle_device_cost, longer)
