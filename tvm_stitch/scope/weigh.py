# SPDX-License-Identifier: Apache-2.0
"""Weigh scopes against TVM's own fusion, and give up those that leave more kernels than they save.

A scope takes neighbours away from TVM's kernels. An operator that no scope can take would have computed its
element-wise producers and consumers in its own kernel. ``fusion.py`` predicts TVM's kernels for the graph without
any scope, and for the operators outside of the scopes. If the scopes lead to more kernels, some are given up.

A scope's neighbourhood consists of TVM's kernels that share nodes with it. Scopes, epilogues and views are given up
if their neighbourhood has fewer kernels without them. Then all those are given up that lose only together. A scope
counts as one kernel here, even if a device without cooperative launches needs a launch for every phase. The
phases of a sum across rows are a question of time. TVM's single kernel for it leaves most of the device idle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from .fusion import FusionGraph, Pattern, fuse
from .node import Node, NodeKind, Value
from .quotient import Quotient

MORE_KERNELS = "TVM fuses them; as a stitch op of its own it would be one kernel more"


@dataclass(frozen=True)
class Kernels:
    """Nodes (by number) that run together, and their number of launches."""

    nodes: tuple[int, ...]
    count: int


@dataclass
class Weigher:
    """The units of a graph, among them scopes and epilogues, compared with TVM's kernels without them.

    Attributes:
        quotient: the units. Units that are given up are taken apart in it.
        kernels: the launches of every unit that TVM's fusion does not touch, by its name in ``quotient``. Scopes and
            epilogues are such units, and views outside of them, which need no launch.
        apart: nodes that are slow in a matmul's kernel of TVM. Scopes that take them out of one are kept as long as
            the whole graph has no more kernels than TVM's.
    """

    quotient: Quotient
    kernels: dict[int, int]
    apart: Collection[int] = ()

    def run(self) -> list[tuple[int, ...]]:
        """Give up units until there are no more kernels than TVM's. Return the nodes of each unit given up."""
        self.given_up: list[tuple[int, ...]] = []
        stock = self._stock()
        self._settle(self._stock(self.apart))
        if self.apart and _total(self.grouped()) > _total(stock):
            self._settle(stock)
        return self.given_up

    def _stock(self, barred: Iterable[int] = ()) -> list[Kernels]:
        """Return TVM's kernels without any scope, with the ``barred`` nodes kept out of the kernels of matmuls."""
        nodes = self.quotient.nodes
        units = [[i] for i in range(len(nodes))]
        kernels = kernels_of(nodes, self.quotient.users, units, {})
        held = {
            i for k in kernels if any(nodes[n].kind is NodeKind.COMPUTE for n in k.nodes) for i in k.nodes
        }
        barred = held & set(barred)
        return kernels_of(nodes, self.quotient.users, units, {}, barred) if barred else kernels

    def grouped(self) -> list[Kernels]:
        """Return the current kernels: the units, and TVM's kernels for the rest."""
        q = self.quotient
        order = q.topological()
        fixed = {at: self.kernels[s] for at, s in enumerate(order) if s in self.kernels}
        return kernels_of(q.nodes, q.users, [q.members[s] for s in order], fixed)

    # -- giving up ----------------------------------------------------------------------------------------------
    def _settle(self, stock: Sequence[Kernels]) -> None:
        """Give up units that lose by themselves, then all units that lose together."""
        self._one_by_one(stock)
        while losing := self._losing(stock):
            for s in losing:
                self._give_up(s)

    def _give_up(self, scope: int) -> None:
        del self.kernels[scope]
        self.given_up.append(tuple(self.quotient.take_apart(scope)))

    def _one_by_one(self, stock: Sequence[Kernels]) -> None:
        """Give up every unit whose neighbourhood has fewer kernels without it.

        The neighbourhood of a unit consists of TVM's kernels that share nodes with it.
        """
        q = self.quotient
        order_of = {i: (at, i) for at, s in enumerate(q.topological()) for i in q.members[s]}
        near: dict[int, list[int]] = {}  # by node, its kernels of TVM
        for k, group in enumerate(stock):
            for i in group.nodes:
                near.setdefault(i, []).append(k)
        waiting = sorted(self.kernels)
        while waiting:
            scope = waiting.pop(0)
            if scope not in self.kernels:
                continue
            touched = dict.fromkeys(k for i in q.members[scope] for k in near.get(i, ()))
            around = sorted({i for k in touched for i in stock[k].nodes}, key=lambda i: order_of[i])
            if self._kernels_around(around, scope) <= self._kernels_around(around, None, scope):
                continue
            self._give_up(scope)
            again = {q.scope_of[i] for i in around} & set(self.kernels)
            waiting += sorted(again - set(waiting))

    def _kernels_around(self, around: Sequence[int], kept: int | None, without: int | None = None) -> int:
        """Return the number of kernels of some nodes, with the unit ``kept`` as a kernel and the unit ``without``
        given up.

        Nodes of other units count as out of reach.
        """
        q = self.quotient
        units: list[Sequence[int]] = []
        fixed: dict[int, int] = {}
        for i in around:
            s = q.scope_of[i]
            if s == kept:
                if i == q.members[s][0]:
                    fixed[len(units)] = self.kernels[s]
                    units.append(q.members[s])
                continue
            if s in self.kernels and s != without:
                fixed[len(units)] = 0
            units.append([i])
        return _total(kernels_of(q.nodes, q.users, units, fixed, within=set(around)))

    def _losing(self, stock: Sequence[Kernels]) -> list[int]:
        """Return the units in groups of overlapping kernels that are more than TVM's kernels for the same nodes."""
        q = self.quotient
        first = list(range(len(q.nodes)))  # a forest of nodes that belong together

        def find(i: int) -> int:
            while first[i] != i:
                first[i] = first[first[i]]
                i = first[i]
            return i

        now = self.grouped()
        for group in [*stock, *now]:
            for i in group.nodes[1:]:
                first[find(i)] = find(group.nodes[0])
        more: dict[int, int] = {}
        for groups, sign in ((now, 1), (stock, -1)):
            for group in groups:
                at = find(group.nodes[0])
                more[at] = more.get(at, 0) + sign * group.count
        return [s for s in self.kernels if more[find(q.members[s][0])] > 0]


def _total(groups: Iterable[Kernels]) -> int:
    return sum(group.count for group in groups)


def kernels_of(
    nodes: Sequence[Node],
    users: dict[Value, list[int]],
    units: Sequence[Sequence[int]],
    fixed: dict[int, int],
    barred: Collection[int] = (),
    within: Collection[int] | None = None,
) -> list[Kernels]:
    """Return the kernels of units in topological order: ``fixed`` units with their launches, TVM's fusion for the
    others.

    Args:
        nodes: all nodes of a graph.
        users: the numbers of the nodes that read a value.
        units: node numbers of each unit. Units that are not fixed are single nodes.
        fixed: launches by position in ``units``.
        barred: nodes that must not join a matmul's kernel.
        within: the nodes in ``units`` if these are not all. Values that other nodes read stay in memory.
    """
    graph = FusionGraph()
    vertex_of: dict[Value, int] = {}  # the vertex of a value
    owner: list[int | None] = []  # the unit of a vertex, None for one of several results

    def add(unit: int | None, pattern: int, reads: Iterable[tuple[int, int]], kept: bool) -> int:
        owner.append(unit)
        return graph.add(pattern, reads, kept)

    for at, unit in enumerate(units):
        inside = set(unit)
        pattern = int(Pattern.OPAQUE) if at in fixed else nodes[unit[0]].pattern
        if unit[0] in barred:
            pattern = max(pattern, int(Pattern.INJECTIVE))
        reads: dict[int, int] = {}
        for i in unit:
            for value in dict.fromkeys(nodes[i].inputs):
                if value in vertex_of:
                    narrow = value in nodes[i].elementwise and pattern == Pattern.BROADCAST
                    read_pattern = int(Pattern.ELEMENTWISE) if narrow else pattern
                    reads[vertex_of[value]] = max(read_pattern, reads.get(vertex_of[value], 0))
        leaving: list[tuple[Value, bool]] = []
        for i in unit:
            for value in nodes[i].outputs:
                outside = [u for u in users.get(value, ()) if u not in inside]
                kept = value in nodes[i].escapes or (
                    within is not None and any(u not in within for u in outside)
                )
                if outside or kept:
                    leaving.append((value, kept))
        through = list(reads.items())
        if at not in fixed and nodes[unit[0]].tupled and through:
            through = [(add(None, Pattern.TUPLE, [(v, Pattern.INJECTIVE) for v in reads], False), pattern)]
        several = len(nodes[unit[0]].outputs) > 1 if len(unit) == 1 else len(leaving) > 1
        vertex = add(at, pattern, through, not several and any(kept for _, kept in leaving))
        for value, kept in leaving:
            vertex_of[value] = (
                add(None, Pattern.INJECTIVE, [(vertex, Pattern.INJECTIVE)], kept) if several else vertex
            )
    together: dict[int, list[int]] = {}
    for vertex, root in enumerate(fuse(graph)):
        unit_at = owner[vertex]
        if unit_at is not None:
            together.setdefault(root, []).append(unit_at)
    kernels = []
    for positions in together.values():
        members = tuple(sorted(i for at in positions for i in units[at]))
        if positions[0] in fixed:
            kernels.append(Kernels(members, fixed[positions[0]]))
        else:
            kernels.append(Kernels(members, int(not all(nodes[i].is_view for i in members))))
    return kernels
