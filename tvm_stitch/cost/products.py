# SPDX-License-Identifier: Apache-2.0
"""Estimated time of matrix products and convolutions on a CPU, in multiplications of vectors."""

from __future__ import annotations

from collections.abc import Sequence

from .choices import Choices


def step_cost(tile: int, rows: int, vectors: int, choices: Choices) -> int:
    """Return the cost of a step of the reduction, over all tiles of ``rows`` rows. The last tile may overlap."""
    return -(-rows // tile) * (max(tile * vectors, choices.sum_vectors_in_flight) + choices.step_overhead)


def elapsed(tasks: int, cost: float, busy: float, cores: Sequence[int]) -> float:
    """Return the time of tasks times the number of cores that compute them: the mean over numbers of cores.

    Args:
        tasks: number of tasks.
        cost: time of a whole task.
        busy: average work of a task, as a share of a whole one.
        cores: numbers of cores.
    """
    # A single core has no whole rounds to fill.
    rounds = [-(-tasks // number) * number if number > 1 else 0 for number in cores]
    return sum(max(elapsed, tasks * busy) for elapsed in rounds) * cost / len(cores)
