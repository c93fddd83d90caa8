# SPDX-License-Identifier: Apache-2.0
"""Estimated time of matrix products and convolutions on a CPU, in multiplications of vectors."""

from __future__ import annotations

from collections.abc import Sequence

from .choices import Choices


def step_cost(tile: int, rows: int, vectors: int, choices: Choices) -> int:
    """Return the cost of one step of the reduction for ``rows`` rows, in multiplications of vectors.

    The last tile may overlap the tile before it.

    Args:
        tile: rows of a tile.
        rows: rows to compute.
        vectors: vectors of sums in a row of a tile.
        choices: the device's constants of choice.
    """
    return -(-rows // tile) * (max(tile * vectors, choices.sum_vectors_in_flight) + choices.step_overhead)


def matrix_step_cost(tile: int, rows: int, choices: Choices) -> float:
    """Return the cost of one step of the reduction for ``rows`` rows, computed by an instruction for tiles.

    Args:
        tile: rows of a tile, up to 32.
        rows: rows to compute.
        choices: the device's constants of choice.
    """
    return -(-rows // tile) * (choices.matrix_tile_cost + choices.matrix_row_cost * tile)


def elapsed(tasks: int, cost: float, busy: float, cores: Sequence[int]) -> float:
    """Return the core time of tasks: the elapsed time times the number of cores that compute them.

    The unit is that of ``cost``. The result is the mean over the given numbers of cores.

    Args:
        tasks: number of tasks.
        cost: time of a whole task.
        busy: average work of a task, as a share of a whole one.
        cores: numbers of cores.
    """
    # With several cores, the last round of tasks takes as long as the others, even if some cores have no task in it.
    rounds = [-(-tasks // number) * number if number > 1 else 0 for number in cores]
    return sum(max(elapsed, tasks * busy) for elapsed in rounds) * cost / len(cores)
