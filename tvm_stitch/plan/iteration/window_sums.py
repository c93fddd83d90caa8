# SPDX-License-Identifier: Apache-2.0
"""Sums and maxima inside of an operator's expression, whose terms are read below conditions, as in a pool with padding.

All terms of a vector of columns together need more registers than a thread has: nine of eight float32 are 72. Such
a sum is added up by groups of terms. The loads of a group are in flight together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ... import compat
from ...compat import Expr
from ...graph.access import branches, loads
from .alignment import Key

Loaded = TypeVar("Loaded")

_CHAINS = ("Add", "Max")


@dataclass(frozen=True, eq=False)
class WindowSum:
    """A sum, or a maximum, of terms one after another.

    Attributes:
        key: the operator at a point.
        nodes: its additions. The first one adds the second term to the first. Each other one adds a term to the node
            before. The last one is the sum.
        begins: the number of the operator's accesses in front of each term, and of those up to the sum's end.
    """

    key: Key
    nodes: tuple[Expr, ...]
    begins: tuple[int, ...]

    @property
    def terms(self) -> tuple[Expr, ...]:
        """The terms, in the order in which they are added up."""
        return (self.nodes[0].a, *(node.b for node in self.nodes))

    def term_of(self, access: int) -> int | None:
        """Return the number of the term that an access of the operator belongs to, if it belongs to one."""
        found = [i for i, begin in enumerate(self.begins) if begin <= access]
        return found[-1] if found and found[-1] < len(self.begins) - 1 else None


def window_sum(key: Key, least: int) -> WindowSum | None:
    """Return the first sum of an operator's expression in which ``least`` terms or more depend on conditions."""
    if key[0].is_reduce:
        return None
    found = next(_chains(key[0].value, 0, least), None)
    return None if found is None else WindowSum(key, *found)


def grouped(
    needs: Sequence[Sequence[tuple[Loaded, float]]], most: float
) -> list[tuple[list[int], list[Loaded]]]:
    """Return the numbers of the terms of each group, and what the group loads.

    Args:
        needs: what each term loads, and the registers for it. A term may need what an earlier one loaded.
        most: registers of a group. A term that needs more is alone.
    """
    groups: list[tuple[list[int], list[Loaded]]] = []
    known: set[int] = set()
    words = 0.0
    for number, need in enumerate(needs):
        fresh = [(each, cost) for each, cost in need if id(each) not in known]
        known.update(id(each) for each, _ in fresh)
        cost = sum(cost for _, cost in fresh)
        if not groups or words + cost > most:
            groups.append(([], []))
            words = 0.0
        groups[-1][0].append(number)
        groups[-1][1].extend(each for each, _ in fresh)
        words += cost
    return groups


def _chains(e: Expr, begin: int, least: int) -> Iterator[tuple[tuple[Expr, ...], tuple[int, ...]]]:
    kind = compat.kind(e)
    if kind in _CHAINS:
        nodes = [e]
        while compat.kind(nodes[-1].a) == kind:
            nodes.append(nodes[-1].a)
        nodes.reverse()
        terms = [nodes[0].a, *(node.b for node in nodes)]
        if sum(branches(term) is not None for term in terms) >= least:
            begins = [begin]
            for term in terms:
                begins.append(begins[-1] + _accesses(term))
            yield tuple(nodes), tuple(begins)
            return
    if kind in compat.BINARY:
        yield from _chains(e.a, begin, least)
        yield from _chains(e.b, begin + _accesses(e.a), least)
    elif kind == "Cast":
        yield from _chains(e.value, begin, least)


def _accesses(e: Expr) -> int:
    return sum(1 for _ in loads(e))
