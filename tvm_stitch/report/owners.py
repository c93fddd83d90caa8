# SPDX-License-Identifier: Apache-2.0
"""Which kernels compute which operators, told by the values that kernels write.

Passes rewrite what is between two values that kernels hand on, and keep the names of these. So an operator whose result
no kernel writes is computed in the kernels of the operators that read it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One operator to place: the names of its results, and the indices of the steps before it that it reads."""

    values: tuple[str, ...]
    producers: tuple[int, ...]


def owners(
    steps: Sequence[Step], known: Mapping[int, Collection[int]], views: frozenset[str] = frozenset()
) -> list[tuple[int, ...]]:
    """Return the kernels of every step, in order; none for a view and for what nothing reads.

    Args:
        steps: in topological order.
        known: by index of a step the kernels that it is known to be in, above all the one that writes its result.
        views: values that no kernel makes, by name.
    """
    found: list[set[int]] = [set(known.get(i, ())) for i in range(len(steps))]
    ends = [i in known or any(v in views for v in step.values) for i, step in enumerate(steps)]
    for i in reversed(range(len(steps))):
        for p in steps[i].producers:
            if not ends[p]:
                found[p] |= found[i]
    return [tuple(sorted(kernels)) for kernels in found]


def inherited(labels: Sequence[str], steps: Sequence[Step]) -> list[str]:
    """Return a label for every step that has none: that of the first step, in order, that reads it and has one."""
    found = list(labels)
    for i in reversed(range(len(steps))):
        for p in steps[i].producers:
            if not labels[p] and found[i]:
                found[p] = found[i]
    return found
