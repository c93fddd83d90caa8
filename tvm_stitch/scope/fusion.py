# SPDX-License-Identifier: Apache-2.0
"""Predict TVM's ``FuseOps`` on a graph of nodes: the nodes outside of scopes that share a kernel.

The rules are TVM's, the same in Relax and Relay. All paths from a node meet at its immediate post-dominator. The node
is fused into it, with everything on those paths, if the patterns on the way allow it. There are three sweeps:

1. element-wise nodes and broadcasts, and matmuls with element-wise nodes behind them, 2. injective nodes, 3. nodes
that reach an injective node through a tuple.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


class Pattern(enum.IntEnum):
    """TVM's ``TOpPattern``."""

    ELEMENTWISE = 0
    BROADCAST = 1
    INJECTIVE = 2
    REDUCE = 3
    OUT_FUSABLE = 4
    TUPLE = 7
    OPAQUE = 8


@dataclass
class FusionGraph:
    """Vertices 0..n-1 in topological order, each with its pattern.

    ``uses`` holds the readers of each vertex, with the pattern of the read. ``kept`` marks vertices whose value is
    used beyond the graph.
    """

    patterns: list[int] = field(default_factory=list)
    uses: list[list[tuple[int, int]]] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)

    def add(self, pattern: int, reads: Iterable[tuple[int, int]] = (), kept: bool = False) -> int:
        """Return a new vertex. ``reads`` holds existing vertices, each with the pattern in which the new one reads
        it.
        """
        new = len(self.patterns)
        self.patterns.append(pattern)
        self.uses.append([])
        self.kept.append(kept)
        for vertex, pattern_of_read in reads:
            self.uses[vertex].append((new, pattern_of_read))
        return new


def fuse(graph: FusionGraph) -> list[int]:
    """Return the group of every vertex, named by one of its members."""
    fuser = _Fuser(graph)
    for sweep in range(3):
        fuser.sweep(sweep)
    return [fuser.root(v) for v in range(len(graph.patterns))]


class _Fuser:
    def __init__(self, graph: FusionGraph):
        self.graph, self.uses = graph, graph.uses
        count = len(graph.patterns)
        self.parent: list[int | None] = [None] * count  # the immediate post-dominator
        self.way = [int(Pattern.OPAQUE)] * count  # the widest pattern on the path there
        self.depth = [1] * count
        for v in reversed(range(count)):
            self._dominate(v)
        self.group = list(range(count))
        self.pattern = list(graph.patterns)  # of a group, at its root
        self.anchored = [p == Pattern.OUT_FUSABLE for p in graph.patterns]

    # -- post-dominators ----------------------------------------------------------------------------------------
    def _dominate(self, v: int) -> None:
        if self.graph.kept[v]:
            return
        way = int(Pattern.ELEMENTWISE)
        meet: int | None = None
        for i, (user, pattern) in enumerate(self.uses[v]):
            way = max(way, pattern)
            if i == 0:
                meet = user
            else:
                meet, way = self._meet(meet, user, way)
        self.parent[v], self.way[v] = meet, way
        self.depth[v] = 1 if meet is None else self.depth[meet] + 1

    def _meet(self, a: int | None, b: int | None, way: int) -> tuple[int | None, int]:
        """Return the vertex at which the paths from two vertices meet, and the widest pattern on them."""
        while a != b:
            if a is None or b is None:
                return None, way
            a_moves, b_moves = self.depth[a] >= self.depth[b], self.depth[b] >= self.depth[a]
            if a_moves:
                way, a = max(way, self.way[a]), self.parent[a]
            if b_moves:
                way, b = max(way, self.way[b]), self.parent[b]
        return a, way

    # -- groups -------------------------------------------------------------------------------------------------
    def root(self, v: int) -> int:
        """Return the vertex that names the group of a vertex."""
        while self.group[v] != v:
            self.group[v] = self.group[self.group[v]]
            v = self.group[v]
        return v

    def sweep(self, sweep: int) -> None:
        """Run one of the three sweeps, in topological order."""
        for v in range(len(self.group)):
            meet, own = self.parent[v], self.pattern[self.root(v)]
            if own == Pattern.OPAQUE or meet is None:
                continue
            if sweep == 2:
                if own <= Pattern.INJECTIVE and self.graph.patterns[meet] == Pattern.TUPLE:
                    if self.pattern[self.root(meet)] <= Pattern.INJECTIVE:
                        self._try(v, meet, _only_up_to(Pattern.INJECTIVE))
                continue
            if self.root(v) == self.root(meet) or self.graph.patterns[meet] == Pattern.TUPLE:
                continue
            if own == Pattern.OUT_FUSABLE:
                if sweep == 0 and self.way[v] == Pattern.ELEMENTWISE:
                    self._try(v, meet, _only_up_to(Pattern.BROADCAST))
            elif own <= Pattern.BROADCAST:
                if self.way[v] <= Pattern.REDUCE:
                    self._try(v, meet, _into_any)
            elif own in (Pattern.INJECTIVE, Pattern.TUPLE) and sweep == 1:
                self._try(v, meet, _only_up_to(Pattern.INJECTIVE))

    def _try(self, start: int, end: int, allowed: Callable[[int, bool], bool]) -> None:
        """Fuse all vertices on paths between two vertices, if their groups' patterns allow it."""
        inside = {start}
        waiting = [start]
        while waiting:
            for user, _ in self.uses[waiting.pop()]:
                if user in inside:
                    continue
                if not allowed(self.pattern[self.root(user)], user == end):
                    return
                inside.add(user)
                if user != end:
                    waiting.append(user)
        for v in sorted(inside - {end}):
            self._join(v, end)

    def _join(self, v: int, into: int) -> None:
        child, parent = self.root(v), self.root(into)
        if child == parent:
            return
        self.group[child] = parent
        if self.anchored[child]:
            self.anchored[parent] = True
            self.pattern[parent] = max(self.pattern[child], self.pattern[parent])


def _only_up_to(most: int) -> Callable[[int, bool], bool]:
    return lambda pattern, _at_end: pattern <= most


def _into_any(pattern: int, at_end: bool) -> bool:
    return pattern <= Pattern.INJECTIVE or (at_end and pattern in (Pattern.REDUCE, Pattern.OUT_FUSABLE))
