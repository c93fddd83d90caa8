# SPDX-License-Identifier: Apache-2.0
"""Attribute operators to kernels by the values that kernels write.

Passes rewrite operators between two values that kernels exchange, and keep the names of these values. So an
operator whose result no kernel writes is computed in the kernels of the operators that read it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One operator to place: the names of its results, and the indices of the preceding steps that it reads."""

    values: tuple[str, ...]
    producers: tuple[int, ...]


def owners(
    steps: Sequence[Step], known: Mapping[int, Collection[int]], views: frozenset[str] = frozenset()
) -> list[tuple[int, ...]]:
    """Return the kernels of every step, in order. A view has none, and neither has a step that nothing reads.

    Args:
        steps: in topological order.
        known: known kernels by index of a step, above all the kernel that writes its result.
        views: names of values that no kernel computes.
    """
    kernels_of: list[set[int]] = [set(known.get(i, ())) for i in range(len(steps))]
    ends = [i in known or any(v in views for v in step.values) for i, step in enumerate(steps)]
    for i in reversed(range(len(steps))):
        for p in steps[i].producers:
            if not ends[p]:
                kernels_of[p] |= kernels_of[i]
    return [tuple(sorted(kernels)) for kernels in kernels_of]


def inherited(labels: Sequence[str], steps: Sequence[Step]) -> list[str]:
    """Return labels with each missing one taken from the first step, in order, that reads this step and has one."""
    result = list(labels)
    for i in reversed(range(len(steps))):
        for p in steps[i].producers:
            if not labels[p] and result[i]:
                result[p] = result[i]
    return result
