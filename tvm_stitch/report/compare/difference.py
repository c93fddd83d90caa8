# SPDX-License-Identifier: Apache-2.0
"""The difference of two reports: which kernels became which, and what that saves.

Kernels of both sides that compute a common operator of the model belong together. The operators of stock TVM's kernels
are unknown. Kernels of the same name belong together there, and all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .side import Opportunity, Side, SideKernel

MOST_OPPORTUNITIES = 5


@dataclass(frozen=True)
class Change:
    """Kernels of one side and those of the other that compute the same operators."""

    before: tuple[SideKernel, ...]
    after: tuple[SideKernel, ...]

    def is_equal(self, timed: bool) -> bool:
        """Return whether both sides have the same kernels, with the same traffic.

        Args:
            timed: whether their times have to be the same too. Measured ones never are.
        """
        sides = [
            Counter((k.function, k.bytes, k.seconds if timed else None) for k in side)
            for side in (self.before, self.after)
        ]
        return sides[0] == sides[1]


@dataclass(frozen=True)
class Difference:
    """Two sides, the changes between them, and the number of kernels that are equal.

    ``changes`` has those with other kernels or other traffic only, the largest change of bytes first.
    """

    before: Side
    after: Side
    changes: tuple[Change, ...]
    equal: int

    @property
    def opportunities(self) -> tuple[Opportunity, ...]:
        """The best opportunities of the second side."""
        return self.after.opportunities[:MOST_OPPORTUNITIES]


def difference(before: Side, after: Side) -> Difference:
    """Return the difference of two sides of one model."""
    if all(any(k.operators for k in side.kernels) for side in (before, after)):
        groups = _by_operators(before.kernels, after.kernels)
    else:
        groups = _by_name(before.kernels, after.kernels)
    timed = not (before.measured or after.measured)
    changes = [group for group in groups if not group.is_equal(timed)]
    changes.sort(key=_size_of_change)
    equal = sum(len(group.after) for group in groups if group.is_equal(timed))
    return Difference(before, after, tuple(changes), equal)


def _size_of_change(change: Change) -> float:
    sizes = [total_bytes(side) or 0 for side in (change.before, change.after)]
    return -abs(sizes[0] - sizes[1])


def total_bytes(kernels: Iterable[SideKernel]) -> int | None:
    """Return the bytes of kernels together, or None if one is unknown."""
    known = [k.bytes for k in kernels]
    return None if None in known else sum(size or 0 for size in known)


def total_seconds(kernels: Iterable[SideKernel]) -> float | None:
    """Return the seconds of kernels together, or None if one is unknown."""
    known = [k.seconds for k in kernels]
    return None if None in known else sum(time or 0.0 for time in known)


def _by_operators(before: Sequence[SideKernel], after: Sequence[SideKernel]) -> list[Change]:
    """Return the connected groups of kernels, in the order of the first side."""
    leader: dict[object, object] = {}

    def find(item: object) -> object:
        while leader.setdefault(item, item) != item:
            leader[item] = item = leader[leader[item]]
        return item

    keyed: list[tuple[int, SideKernel, object]] = []
    for side, kernels in enumerate((before, after)):
        for number, kernel in enumerate(kernels):
            own: object = (side, number) if kernel.operators else ("name", kernel.function)
            for key in sorted(kernel.operators):
                leader[find(("operator", key))] = find(own)
            keyed.append((side, kernel, own))
    groups: dict[object, tuple[list[SideKernel], list[SideKernel]]] = {}
    for side, kernel, own in keyed:
        groups.setdefault(find(own), ([], []))[side].append(kernel)
    return [Change(tuple(a), tuple(b)) for a, b in groups.values()]


def _by_name(before: Sequence[SideKernel], after: Sequence[SideKernel]) -> list[Change]:
    """Return the kernels that both sides call equally often by name, and all others as one change."""
    counts = [Counter(k.function for k in side) for side in (before, after)]
    same = [name for name, number in counts[0].items() if counts[1][name] == number]
    groups = [_named(before, after, {name}) for name in same]
    others = {k.function for k in (*before, *after)} - set(same)
    return [*groups, _named(before, after, others)] if others else groups


def _named(before: Sequence[SideKernel], after: Sequence[SideKernel], names: set[str]) -> Change:
    return Change(*(tuple(k for k in side if k.function in names) for side in (before, after)))
