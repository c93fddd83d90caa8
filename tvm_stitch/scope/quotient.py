# SPDX-License-Identifier: Apache-2.0
"""The graph of scopes: merging keeps it acyclic, checked by reachability kept as bit sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .node import Node, Value


class State(NamedTuple):
    """A quotient graph at some time."""

    scope_of: list[int]
    members: dict[int, list[int]]
    above: list[int]
    below: list[int]


class Quotient:
    """Scopes over nodes 0..n-1 (topologically ordered). A scope is named by its least node.

    ``below[s]`` and ``above[s]`` are bit sets of the nodes that a path leads to from scope s, and that lead to it,
    paths going through whole scopes. ``maker`` and ``users`` are the nodes that make and read a value.
    """

    def __init__(self, nodes: Sequence[Node]):
        self.nodes = nodes
        self.maker: dict[Value, int] = {v: i for i, n in enumerate(nodes) for v in n.outputs}
        self.users: dict[Value, list[int]] = {}
        for i, n in enumerate(nodes):
            for v in dict.fromkeys(n.inputs):
                self.users.setdefault(v, []).append(i)
        self.producers = [sorted({self.maker[v] for v in n.inputs if v in self.maker}) for n in nodes]
        self.consumers: list[list[int]] = [[] for _ in nodes]
        for i, ps in enumerate(self.producers):
            for p in ps:
                self.consumers[p].append(i)
        self.scope_of = list(range(len(nodes)))
        self.members: dict[int, list[int]] = {i: [i] for i in range(len(nodes))}
        self.above = [0] * len(nodes)
        for i, ps in enumerate(self.producers):
            for p in ps:
                self.above[i] |= self.above[p] | 1 << p
        self.below = [0] * len(nodes)
        for i in reversed(range(len(nodes))):
            for c in self.consumers[i]:
                self.below[i] |= self.below[c] | 1 << c

    def snapshot(self) -> State:
        """The scopes as they are, for :meth:`restore`."""
        return State(list(self.scope_of), dict(self.members), list(self.above), list(self.below))

    def restore(self, state: State) -> None:
        """Undo all merges since a snapshot, which is used up by that."""
        self.scope_of, self.members, self.above, self.below = state

    def mask(self, scope: int) -> int:
        """The scope's nodes as a bit set."""
        m = 0
        for i in self.members[scope]:
            m |= 1 << i
        return m

    def connected(self, a: int, b: int) -> bool:
        """True when a path leads from one scope to the other."""
        return bool(self.below[a] & self.mask(b) or self.below[b] & self.mask(a))

    def would_cycle(self, a: int, b: int) -> bool:
        """Would merging make a path leave the merged scope and come back?"""
        both = self.mask(a) | self.mask(b)
        between = (self.below[a] | self.below[b]) & (self.above[a] | self.above[b]) & ~both
        return bool(between)

    def merge(self, a: int, b: int) -> int:
        """Merge two scopes (the caller has checked ``would_cycle``); returns the merged scope's name."""
        a, b = min(a, b), max(a, b)
        parts = {s: (self.above[s], self.below[s], self.mask(s)) for s in (a, b)}
        both = parts[a][2] | parts[b][2]
        above = (parts[a][0] | parts[b][0]) & ~both
        below = (parts[a][1] | parts[b][1]) & ~both
        self.members[a] = sorted(self.members[a] + self.members.pop(b))
        for i in self.members[a]:
            self.scope_of[i] = a
        # Reachability is stored at scope names. What is above one part only now reaches the other part and what is
        # below it, and back; what is above both knows that already, so that merging neighbours touches few scopes.
        for one, other in ((a, b), (b, a)):
            above_one, below_one, _ = parts[one]
            above_other, below_other, mask_other = parts[other]
            for s in self._scopes(above_one & ~above_other & ~both):
                self.below[s] |= below_other | mask_other
            for s in self._scopes(below_one & ~below_other & ~both):
                self.above[s] |= above_other | mask_other
        self.above[a], self.below[a] = above, below
        return a

    def take_apart(self, scope: int) -> list[int]:
        """Make every node of a scope one of its own again, when nothing is going to be merged any more."""
        members = self.members.pop(scope)
        for i in members:
            self.members[i] = [i]
            self.scope_of[i] = i
        return members

    def detach(self, scope: int, node: int) -> int:
        """Make one node of a scope one of its own again, when nothing is going to be merged any more.

        Returns: the name of what is left of the scope.
        """
        members = [i for i in self.members.pop(scope) if i != node]
        self.members[node] = [node]
        self.scope_of[node] = node
        name = members[0]
        self.members[name] = members
        for i in members:
            self.scope_of[i] = name
        return name

    def _scopes(self, bits: int) -> Iterator[int]:
        seen: set[int] = set()
        while bits:
            low = bits & -bits
            bits ^= low
            s = self.scope_of[low.bit_length() - 1]
            if s not in seen:
                seen.add(s)
                yield s

    def topological(self) -> list[int]:
        """Scope names in an order in which every scope comes after the ones it needs, near the original order."""
        import heapq

        waiting = dict.fromkeys(self.members, 0)
        users: dict[int, set[int]] = {s: set() for s in self.members}
        for i, ps in enumerate(self.producers):
            for p in ps:
                a, b = self.scope_of[p], self.scope_of[i]
                if a != b and b not in users[a]:
                    users[a].add(b)
                    waiting[b] += 1
        ready = [s for s, n in waiting.items() if n == 0]
        heapq.heapify(ready)
        order = []
        while ready:
            s = heapq.heappop(ready)
            order.append(s)
            for u in users[s]:
                waiting[u] -= 1
                if waiting[u] == 0:
                    heapq.heappush(ready, u)
        assert len(order) == len(self.members), "the graph of scopes has a cycle"
        return order
