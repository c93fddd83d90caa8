# SPDX-License-Identifier: Apache-2.0
"""Weigh scopes against TVM's own fusion, and give up those that leave more kernels than they save.

What is left to TVM loses neighbours to a scope: an operator that no scope can take would have computed its element-wise
producers and consumers in its own kernel. ``fusion.py`` says what TVM makes of the graph without any scope and of what
the scopes leave; where that is more kernels, scopes go back.

Scopes, epilogues and views go back where their neighbourhood (TVM's kernels that share nodes with them) has fewer
kernels without them; then all of those that are more only together. A scope counts as one kernel here, also where a
device without cooperative launches makes a launch of every phase: how many phases a sum across rows takes is a
question of time, and TVM's one kernel for it leaves most of the device idle.
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
    """What runs together: the nodes, by number, and how many launches that is."""

    nodes: tuple[int, ...]
    count: int


@dataclass
class Weigher:
    """The units of a graph, scopes and epilogues among them, and what TVM would make of the graph without them.

    Attributes:
        quotient: the units; those that are given up are taken apart in it.
        kernels: the launches of every unit that TVM's fusion leaves alone, by its name in ``quotient``: of scopes,
            epilogues, and views outside them, which take none.
        apart: nodes that TVM had better not compute in a matmul's kernel, for speed; scopes that take them out of one
            are kept as long as the graph as a whole has no more kernels than TVM makes of it.
    """

    quotient: Quotient
    kernels: dict[int, int]
    apart: Collection[int] = ()

    def run(self) -> list[tuple[int, ...]]:
        """Give up units until there are no more kernels than TVM makes; the nodes of those, unit by unit."""
        self.given_up: list[tuple[int, ...]] = []
        stock = self._stock()
        self._settle(self._stock(self.apart))
        if self.apart and _total(self.grouped()) > _total(stock):
            self._settle(stock)
        return self.given_up

    def _stock(self, barred: Iterable[int] = ()) -> list[Kernels]:
        """TVM's kernels without any scope, if it left ``barred`` nodes out of the kernels of matmuls."""
        nodes = self.quotient.nodes
        units = [[i] for i in range(len(nodes))]
        found = kernels_of(nodes, self.quotient.users, units, {})
        held = {i for k in found if any(nodes[n].kind is NodeKind.COMPUTE for n in k.nodes) for i in k.nodes}
        barred = held & set(barred)
        return kernels_of(nodes, self.quotient.users, units, {}, barred) if barred else found

    def grouped(self) -> list[Kernels]:
        """The kernels as it stands: units, and what TVM makes of the rest."""
        q = self.quotient
        order = q.topological()
        fixed = {at: self.kernels[s] for at, s in enumerate(order) if s in self.kernels}
        return kernels_of(q.nodes, q.users, [q.members[s] for s in order], fixed)

    # -- giving up ----------------------------------------------------------------------------------------------
    def _settle(self, stock: Sequence[Kernels]) -> None:
        """Give up units that lose by themselves, then all of those that lose together."""
        self._one_by_one(stock)
        while losing := self._losing(stock):
            for s in losing:
                self._give_up(s)

    def _give_up(self, scope: int) -> None:
        del self.kernels[scope]
        self.given_up.append(tuple(self.quotient.take_apart(scope)))

    def _one_by_one(self, stock: Sequence[Kernels]) -> None:
        """Give up every unit whose neighbourhood has fewer kernels without it.

        A unit's neighbourhood are the kernels of TVM's that share nodes with it.
        """
        q = self.quotient
        place = {i: (at, i) for at, s in enumerate(q.topological()) for i in q.members[s]}
        near: dict[int, list[int]] = {}  # by node, the kernel of TVM's
        for k, group in enumerate(stock):
            for i in group.nodes:
                near.setdefault(i, []).append(k)
        waiting = sorted(self.kernels)
        while waiting:
            scope = waiting.pop(0)
            if scope not in self.kernels:
                continue
            touched = dict.fromkeys(k for i in q.members[scope] for k in near.get(i, ()))
            around = sorted({i for k in touched for i in stock[k].nodes}, key=lambda i: place[i])
            if self._kernels_around(around, scope) <= self._kernels_around(around, None, scope):
                continue
            self._give_up(scope)
            again = {q.scope_of[i] for i in around} & set(self.kernels)
            waiting += sorted(again - set(waiting))

    def _kernels_around(self, around: Sequence[int], kept: int | None, without: int | None = None) -> int:
        """Kernels of some nodes, of which one unit is a kernel or given up, and others' nodes are out of reach."""
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
        """The units among kernels that share nodes with each other and are more than TVM's for the same nodes."""
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
    """The kernels of units of nodes, in topological order: of ``fixed`` ones so many, and what TVM fuses of the others.

    Args:
        nodes: all nodes of a graph.
        users: the numbers of the nodes that read a value.
        units: numbers of nodes each; those that are not fixed are single nodes.
        fixed: launches by place in ``units``.
        barred: nodes that are no part of a matmul's kernel.
        within: the nodes in ``units``, where these are not all; values that others read stay in memory.
    """
    graph = FusionGraph()
    made: dict[Value, int] = {}  # the vertex of a value
    owner: list[int | None] = []  # the unit of a vertex; None for one result of several, which is no kernel

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
                if value in made:
                    narrow = value in nodes[i].elementwise and pattern == Pattern.BROADCAST
                    how = int(Pattern.ELEMENTWISE) if narrow else pattern
                    reads[made[value]] = max(how, reads.get(made[value], 0))
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
            made[value] = (
                add(None, Pattern.INJECTIVE, [(vertex, Pattern.INJECTIVE)], kept) if several else vertex
            )
    together: dict[int, list[int]] = {}
    for vertex, root in enumerate(fuse(graph)):
        unit_at = owner[vertex]
        if unit_at is not None:
            together.setdefault(root, []).append(unit_at)
    found = []
    for places in together.values():
        members = tuple(sorted(i for at in places for i in units[at]))
        if places[0] in fixed:
            found.append(Kernels(members, fixed[places[0]]))
        else:
            found.append(Kernels(members, int(not all(nodes[i].is_view for i in members))))
    return found
