# SPDX-License-Identifier: Apache-2.0
"""The graph of scopes: merging keeps it acyclic, checked by reachability kept as bit sets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from .node import Node, Value


class State(NamedTuple):
    """A snapshot of a quotient graph."""

    scope_of: list[int]
    members: dict[int, list[int]]
    above: list[int]
    below: list[int]


class Quotient:
    """Scopes over nodes 0..n-1 (topologically ordered). A scope is named by its least node.

    ``below[s]`` is a bit set of the nodes reachable from scope s. ``above[s]`` is that of the nodes from which s is
    reachable. Paths go through whole scopes. ``maker`` and ``users`` hold the nodes that compute and read a value.
    """

    def __init__(self, nodes: Sequence[Node]):
        self.nodes = nodes
        self.maker: dict[Value, int] = {v: i for i, n in enumerate(nodes) for v in n.outputs}
        self.users: dict[Value, list[int]] = {}
        for i, n in enumerate(nodes):
            for v in dict.fromkeys(n.inputs):
                self.users.setdefault(v, []).append(i)
        before = self.maker | {size: i for i, n in enumerate(nodes) for size in n.defines}
        self.producers = [sorted({before[v] for v in (*n.inputs, *n.sizes) if v in before}) for n in nodes]
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
        """Return the current scopes, for :meth:`restore`."""
        return State(list(self.scope_of), dict(self.members), list(self.above), list(self.below))

    def restore(self, state: State) -> None:
        """Undo all merges since a snapshot. A snapshot can be restored only once."""
        self.scope_of, self.members, self.above, self.below = state

    def mask(self, scope: int) -> int:
        """Return the scope's nodes as a bit set."""
        m = 0
        for i in self.members[scope]:
            m |= 1 << i
        return m

    def connected(self, a: int, b: int) -> bool:
        """Return whether a path leads from one scope to the other."""
        return bool(self.below[a] & self.mask(b) or self.below[b] & self.mask(a))

    def would_cycle(self, a: int, b: int) -> bool:
        """Return whether merging would create a path that leaves the merged scope and comes back."""
        both = self.mask(a) | self.mask(b)
        between = (self.below[a] | self.below[b]) & (self.above[a] | self.above[b]) & ~both
        return bool(between)

    def merge(self, a: int, b: int) -> int:
        """Merge two scopes (the caller has checked ``would_cycle``). Return the merged scope's name."""
        a, b = min(a, b), max(a, b)
        reach = {s: (self.above[s], self.below[s], self.mask(s)) for s in (a, b)}
        both = reach[a][2] | reach[b][2]
        above = (reach[a][0] | reach[b][0]) & ~both
        below = (reach[a][1] | reach[b][1]) & ~both
        self.members[a] = sorted(self.members[a] + self.members.pop(b))
        for i in self.members[a]:
            self.scope_of[i] = a
        # Reachability is stored at scope names. A scope above only one of the two now reaches the other one and all
        # below it. The same holds the other way round. A scope above both reaches all of it already, so merging
        # neighbours touches few scopes.
        for one, other in ((a, b), (b, a)):
            above_one, below_one, _ = reach[one]
            above_other, below_other, mask_other = reach[other]
            for s in self._scopes(above_one & ~above_other & ~both):
                self.below[s] |= below_other | mask_other
            for s in self._scopes(below_one & ~below_other & ~both):
                self.above[s] |= above_other | mask_other
        self.above[a], self.below[a] = above, below
        return a

    def take_apart(self, scope: int) -> list[int]:
        """Split a scope into its nodes and return them. No merge may follow."""
        members = self.members.pop(scope)
        for i in members:
            self.members[i] = [i]
            self.scope_of[i] = i
        return members

    def detach(self, scope: int, node: int) -> int:
        """Split one node off a scope. No merge may follow.

        Returns:
            The name of the remaining scope.
        """
        members = [i for i in self.members.pop(scope) if i != node]
        self.members[node] = [node]
        self.scope_of[node] = node
        name = members[0]
        self.members[name] = members
        for i in members:
            self.scope_of[i] = name
        return name

    def move(self, scope: int, nodes: Collection[int], to: int) -> int:
        """Move some nodes of a scope to another scope in front of it. No merge may follow.

        Returns:
            The name of the remaining scope.
        """
        members = [i for i in self.members.pop(scope) if i not in nodes]
        self.members[to] = sorted([*self.members[to], *nodes])
        for i in nodes:
            self.scope_of[i] = to
        self.members[members[0]] = members
        for i in members:
            self.scope_of[i] = members[0]
        return members[0]

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
        """Return scope names in an order in which every scope follows the ones it needs, near the original order."""
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
