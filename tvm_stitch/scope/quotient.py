# SPDX-License-Identifier: Apache-2.0
"""The graph of scopes: merging keeps it acyclic, checked by reachability kept as bit sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .node import Node, Value


class Quotient:
    """Scopes over nodes 0..n-1 (topologically ordered). A scope is named by its least node.

    ``below[s]`` and ``above[s]`` are bit sets of the nodes that a path leads to from scope s, and that lead to it,
    paths going through whole scopes.
    """

    def __init__(self, nodes: Sequence[Node]):
        self.nodes = nodes
        maker: dict[Value, int] = {v: i for i, n in enumerate(nodes) for v in n.outputs}
        self.producers = [sorted({maker[v] for v in n.inputs if v in maker}) for n in nodes]
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
        old = {a: (self.above[a], self.below[a]), b: (self.above[b], self.below[b])}
        both = self.mask(a) | self.mask(b)
        above = (old[a][0] | old[b][0]) & ~both
        below = (old[a][1] | old[b][1]) & ~both
        self.members[a] = sorted(self.members[a] + self.members.pop(b))
        for i in self.members[a]:
            self.scope_of[i] = a
        # Reachability is stored at scope names; nodes above either part now reach what is below both, and back.
        for s in self._scopes(above):
            self.below[s] |= below | both
        for s in self._scopes(below):
            self.above[s] |= above | both
        self.above[a], self.below[a] = above, below
        return a

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
