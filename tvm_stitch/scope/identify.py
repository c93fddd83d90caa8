# SPDX-License-Identifier: Apache-2.0
"""Stitching-scope identification (AStitch 4.1): grow maximal sets of memory-intensive nodes that may form a kernel.

Nodes are visited in topological (breadth-first) order. Each is joined with the scopes that feed it on three
conditions: no cycle arises, a kernel's limits hold, and the whole scope has a plan no slower than two kernels.
Scopes that leave more kernels to TVM than they save are given up. Every refusal is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from ..config import StitchConfig
from ..cost.choices import Choices
from ..graph.ir import StitchGraph
from .compose import compose
from .epilogue import RULES, EpilogueRules, find_epilogues
from .estimate import Estimator, in_block
from .horizontal import fuse_horizontally
from .identified import Boundary, Identified, Scope, inputs_of
from .merging import Merger
from .node import Node, NodeKind, Value
from .prologue import find_prologues, is_border, is_moved
from .quotient import Quotient
from .taken import taken_part
from .weigh import MORE_KERNELS, Weigher

Excluded = Callable[[Sequence[Node], StitchGraph], bool]


def none_excluded(_nodes: Sequence[Node], _graph: StitchGraph) -> bool:
    """Return False for every scope: none is left to TVM."""
    return False


def identify(
    nodes: Sequence[Node],
    config: StitchConfig,
    choices: Choices,
    rules: EpilogueRules = RULES,
    estimate: Estimator | None = None,
    excluded: Excluded = none_excluded,
    views: bool = True,
) -> Identified:
    """Partition ``nodes`` (in topological order) into stitch scopes, epilogues and single nodes.

    Args:
        nodes: the calls of a dataflow block.
        config: limits, and permitted rewrites.
        choices: the device's constants of choice.
        rules: the operators that an epilogue may hold, and when it is taken (if ``config`` permits epilogues).
        estimate: returns the estimate of a graph as one kernel. It raises Misaligned, with the reason, if there is
            none. By default it asks for one row domain.
        excluded: returns whether a scope is left to TVM, from the scope's nodes and graph.
        views: whether reshapes outside of scopes are views, which TVM does not fuse with anything.
    """
    if estimate is None:
        estimate = partial(in_block, choices=choices)
    return _Identifier(nodes, config, choices, rules, estimate).run(excluded, views)


class _Identifier:
    def __init__(
        self,
        nodes: Sequence[Node],
        config: StitchConfig,
        choices: Choices,
        rules: EpilogueRules,
        estimate: Estimator,
    ):
        self.nodes, self.config, self.choices, self.rules = nodes, config, choices, rules
        for i, n in enumerate(nodes):
            n.index = i
        self.quotient = Quotient(nodes)
        self.merger = Merger(nodes, self.quotient, config, choices, estimate)
        self.refused: list[tuple[int, int, str]] = []
        self.lossy: list[tuple[int, int]] = []
        self.declined: dict[int, str] = {}
        self.held: dict[int, str] = {}  # reasons of nodes in an epilogue

    def run(self, excluded: Excluded, views: bool) -> Identified:
        self.stitchable = [n.kind is NodeKind.MEMORY and self._alone(n) for n in self.nodes]
        epilogues = self._epilogues() if self.config.epilogues else []
        self.late = {i for i in range(len(self.nodes)) if self._joins_its_reader(i)}
        self._grow([i for i in range(len(self.nodes)) if self.stitchable[i]])
        self._reconsider()
        self._join_late()
        if self.config.horizontal_fusion:
            fuse_horizontally(self.merger, self._is_scope)
        self._release_views()
        epilogues += self._taken_parts() if self.config.epilogues else []
        self._exclude(excluded)
        self._weigh(epilogues, views)
        return self._result(epilogues)

    def _epilogues(self) -> list[list[Node]]:
        anchors = [
            i for i, n in enumerate(self.nodes) if n.kind is NodeKind.COMPUTE and self.rules.is_template(n)
        ]

        def free_but(chains: Mapping[int, Sequence[int]]) -> list[bool]:
            taken = {i for nodes in chains.values() for i in nodes}
            return [stitchable and i not in taken for i, stitchable in enumerate(self.stitchable)]

        borders = find_prologues(self.quotient, self.stitchable, anchors, self.rules.permuted, is_border, {})
        behind = {
            c[0]: c[1:] for c in find_epilogues(self.quotient, free_but(borders), self.rules, self.choices)
        }
        free = free_but(behind)
        before = find_prologues(self.quotient, free, anchors, self.rules.permuted, is_moved, borders)
        epilogues = []
        for anchor in sorted({*behind, *before}):
            scope = anchor
            for i in [*before.get(anchor, []), *behind.get(anchor, [])]:
                scope = self.quotient.merge(scope, i)
                self.stitchable[i] = False
                self.held[i] = f"computed in the kernel of {self.nodes[anchor].name}"
            epilogues.append([self.nodes[i] for i in self.quotient.members[scope]])
        return epilogues

    def _alone(self, node: Node) -> bool:
        why = self.merger.alone(node.index)
        if why:
            self.declined[node.index] = why
        return not why

    def _is_scope(self, scope: int) -> bool:
        return all(self.stitchable[i] for i in self.quotient.members[scope])

    # -- growing ------------------------------------------------------------------------------------------------
    def _grow(self, order: Sequence[int]) -> None:
        """Join every node with its producers, with more nodes at a time as long as that succeeds.

        After a failure, halving finds the first node that has to be joined alone.
        """
        at, many = 0, 1
        wrong: int | None = None  # the end of a batch that failed
        while at < len(order):
            count = many if wrong is None else max(1, (wrong - at) // 2)
            batch = order[at : at + count]
            if len(batch) == 1:
                self._join_producers(batch[0])
            elif not self._join_many(batch):
                wrong, many = at + len(batch), max(1, len(batch) // 2)
                continue
            at += len(batch)
            if wrong is None:
                many = min(2 * many, self.choices.nodes_at_once)
            elif at >= wrong:
                wrong = None

    def _join_many(self, batch: Sequence[int]) -> bool:
        """Join nodes with their producers without checking the plans, then check that every scope has one."""
        before, noted = self.quotient.snapshot(), len(self.refused)
        touched = set()
        for i in batch:
            for p, reader, a, b in self._edges(i):
                why = self.merger.obstacle(a, b)
                if why:
                    self.refused.append((p, reader, why))
                else:
                    self.quotient.merge(a, b)
                    touched.add(i)
        if self.merger.settle(before, touched):
            return True
        del self.refused[noted:]
        return False

    def _joins_its_reader(self, i: int) -> bool:
        """Return whether a node is a cast that its only reader best computes.

        Two kernels then exchange the narrower type.
        """
        node, readers = self.nodes[i], self.quotient.consumers[i]
        one = len(readers) == 1 and self.stitchable[readers[0]]
        return self.stitchable[i] and node.widens and not node.escapes and one

    def _feeding(self, i: int) -> Iterator[tuple[int, int]]:
        """Yield the nodes that a node is joined with, each with its reader: the node, or a cast that is joined with
        it.
        """
        waiting = [] if i in self.late else [(p, i) for p in self.quotient.producers[i]]
        while waiting:
            p, reader = waiting.pop(0)
            yield p, reader
            if p in self.late:
                waiting = [*((q, p) for q in self.quotient.producers[p]), *waiting]

    def _join_late(self) -> None:
        """Join casts with their producers if they could not be joined with their readers."""
        late, self.late = self.late, set()
        for i in sorted(late):
            if len(self.quotient.members[self.quotient.scope_of[i]]) == 1:
                self._join_producers(i)

    def _edges(self, i: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield the nodes of other scopes that feed a node: each with its reader, its scope, and the node's current
        scope.
        """
        for p, reader in self._feeding(i):
            a, b = self.quotient.scope_of[p], self.quotient.scope_of[i]
            if a == b:
                continue
            if self._is_scope(a):
                yield p, reader, a, b
            else:
                known = self.declined.get(p) or self.held.get(p) or self.nodes[p].reason
                self.refused.append((p, reader, known or self.nodes[p].kind.value))

    def _join_producers(self, i: int) -> None:
        """Join a node with its producers: first those that keep one row domain, then those that need a grid-wide
        plan.
        """
        later = []
        for p, reader, a, b in self._edges(i):
            refusal = self.merger.try_merge(a, b, grid_wide=False)
            if refusal is not None and refusal.lossy:
                later.append((p, reader))
            elif refusal is not None:
                self.refused.append((p, reader, refusal.reason))
        for edge in later:
            self._join_edge(*edge)

    def _join_edge(self, p: int, i: int) -> None:
        a, b = self.quotient.scope_of[p], self.quotient.scope_of[i]
        if a == b:
            return
        refusal = self.merger.try_merge(a, b)
        if refusal is not None:
            self.refused.append((p, i, refusal.reason))
            if refusal.lossy:
                self.lossy.append((p, i))

    def _reconsider(self) -> None:
        """Try again merges that were too slow before: they may pay now that the scopes have grown."""
        lossy, self.lossy = self.lossy, []
        for p, i in lossy:
            self._join_edge(p, i)

    # -- views --------------------------------------------------------------------------------------------------
    def _release_views(self) -> None:
        """Take reshapes out of a scope's border if TVM turns them into views that cost nothing."""
        for scope in [s for s in self.quotient.members if self._is_scope(s)]:
            changed = True
            while changed:
                changed = False
                members = self.quotient.members[scope]
                inside = set(members)
                for i in members:
                    if len(members) > 1 and self.nodes[i].is_view and self._at_border(i, inside):
                        scope = self._split(scope, i)
                        changed = True
                        break

    def _at_border(self, i: int, inside: set[int]) -> bool:
        node = self.nodes[i]
        if node.escapes:
            return False
        outside = [c for c in self.quotient.consumers[i] if c not in inside]
        from_outside = not any(p in inside for p in self.quotient.producers[i])
        if from_outside:
            return bool(outside)
        return bool(outside) and len(outside) == len(self.quotient.consumers[i])

    def _split(self, scope: int, i: int) -> int:
        name = self.quotient.detach(scope, i)
        self.merger.worth[name] = self.merger.worth.pop(scope)
        self.stitchable[i] = False
        return name

    # -- parts of convolutions' kernels -------------------------------------------------------------------------
    def _taken_parts(self) -> list[list[Node]]:
        """Move parts of scopes to the convolution kernels that compute them. Return them behind their kernels."""
        moved = []
        for i, kernel in enumerate(self.nodes):
            scopes = {self.quotient.scope_of[c] for c in self.quotient.consumers[i]}
            if kernel.takes is None or len(kernel.outputs) != 1 or kernel.escapes or len(scopes) != 1:
                continue
            (scope,) = scopes
            if self._is_scope(scope):
                members = [self.nodes[k] for k in self.quotient.members[scope]]
                part = taken_part(kernel, members, self._outputs, self.choices)
                if part and self._move(scope, part, i):
                    moved.append([kernel, *part])
        return moved

    def _outputs(self, nodes: Sequence[Node]) -> set[Value]:
        return self.merger.outputs([node.index for node in nodes])

    def _move(self, scope: int, part: Sequence[Node], kernel: int) -> bool:
        """Move a part of a scope to a kernel, if the rest of the scope has a plan of its own."""
        inside = {node.index for node in part}
        estimate = self.merger.part([i for i in self.quotient.members[scope] if i not in inside])
        if estimate is None:
            return False
        del self.merger.worth[scope]
        self.merger.worth[self.quotient.move(scope, inside, kernel)] = estimate
        for i in inside:
            self.stitchable[i] = False
            self.held[i] = f"computed in the kernel of {self.nodes[kernel].name}"
            self.refused += [(i, c, self.held[i]) for c in self.quotient.consumers[i]]
        return True

    # -- giving back --------------------------------------------------------------------------------------------
    def _exclude(self, excluded: Excluded) -> None:
        if excluded is none_excluded:
            return
        for scope in self._scopes():
            members = self.quotient.members[scope]
            nodes = [self.nodes[i] for i in members]
            if excluded(nodes, compose(nodes, self.merger.outputs(members))):
                self._give_back(self.quotient.take_apart(scope))

    def _scopes(self) -> list[int]:
        """Return the scopes that become stitch ops."""
        members = self.quotient.members
        return [
            s for s in members if self._is_scope(s) and not all(self.nodes[i].is_view for i in members[s])
        ]

    def _give_back(self, members: Sequence[int]) -> None:
        for i in members:
            self.stitchable[i] = False

    def _weigh(self, epilogues: list[list[Node]], views: bool) -> None:
        """Give up the scopes and epilogues with which there would be more kernels than TVM alone makes."""
        q = self.quotient
        kernels = dict.fromkeys(self._scopes(), 1)
        for s in [s for s, members in q.members.items() if s not in kernels and self._is_scope(s)]:
            q.take_apart(s)
        kernels |= {q.scope_of[chain[0].index]: 1 for chain in epilogues}
        self.views = {i for i, n in enumerate(self.nodes) if views and n.is_view and not n.escapes}
        kernels |= {i: 0 for i in self.views if q.members.get(i) == [i] and i not in kernels}
        slow = {i for i, n in enumerate(self.nodes) if n.graph is not None and not self.rules.holds(n)}
        for members in Weigher(
            q, kernels, slow
        ).run():  # TVM computes the nodes in ``slow`` slowly in a matmul's kernel
            self._give_back(members)
            self.views -= set(members)
            inside = set(members)
            for i in members:
                for p in self.quotient.producers[i]:
                    if p not in inside:
                        self.refused.append((p, i, MORE_KERNELS))
        epilogues[:] = [chain for chain in epilogues if len(q.members[q.scope_of[chain[0].index]]) > 1]

    # -- result -------------------------------------------------------------------------------------------------
    def _result(self, epilogues: list[list[Node]]) -> Identified:
        scopes, order = [], []
        for s in self.quotient.topological():
            members = self.quotient.members[s]
            nodes = [self.nodes[i] for i in members]
            order.append(nodes)
            if not self._is_scope(s) or all(n.is_view for n in nodes):
                continue
            leaving = self.merger.outputs(members)
            outputs = [v for n in nodes for v in n.outputs if v in leaving]
            scopes.append(Scope(nodes, inputs_of(nodes), outputs, compose(nodes, leaving)))
        left = {self.nodes[i].name: why for i, why in self.declined.items()}
        left |= {n.name: n.reason for n in self.nodes if n.kind is NodeKind.OPAQUE and n.is_call}
        views = {self.nodes[i] for i in self.views}
        return Identified(scopes, epilogues, order, self._boundaries(), left, self.quotient.users, views)

    def _boundaries(self) -> list[Boundary]:
        """Return the refused edges that still lie between scopes, each with its last reason."""
        reasons = {(p, i): why for p, i, why in self.refused}
        scope_of = self.quotient.scope_of
        return [
            Boundary(self.nodes[p].name, self.nodes[i].name, why, (p, i))
            for (p, i), why in reasons.items()
            if scope_of[p] != scope_of[i]
        ]
