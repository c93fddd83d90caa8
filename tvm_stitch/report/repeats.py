# SPDX-License-Identifier: Apache-2.0
"""Layers that a model repeats: consecutive equal sequences of kernels."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from .data import Repeat

LEAST_SAVED = 3
"""Fewest kernels that a repeat must hide to be shown."""


def find_repeats(kernels: Sequence[Hashable]) -> tuple[Repeat, ...]:
    """Return consecutive repeats, from left to right. Each covers as much as possible with the shortest period."""
    numbers: dict[Hashable, int] = {}
    row = [numbers.setdefault(k, len(numbers)) for k in kernels]
    repeats, at = [], 0
    while at < len(row):
        best = Repeat(at, 1, 1)
        for length in range(1, (len(row) - at) // 2 + 1):
            count = _count(row, at, length)
            if _saved(length, count) > _saved(best.length, best.count):
                best = Repeat(at, length, count)
        if _saved(best.length, best.count) >= LEAST_SAVED:
            repeats.append(best)
            at += best.length * best.count
        else:
            at += 1
    return tuple(repeats)


def _saved(length: int, count: int) -> int:
    return length * (count - 1)


def _count(row: Sequence[int], at: int, length: int) -> int:
    """Return how many times the ``length`` numbers from ``at`` on follow each other."""
    end = at + length
    while end < len(row) and row[end] == row[end - length]:
        end += 1
    return (end - at) // length
