# SPDX-License-Identifier: Apache-2.0
"""Stitching-scope identification (AStitch 4.1): grow maximal sets of memory-intensive nodes that may form a kernel.

Nodes are visited in topological (breadth-first) order and each is joined with the scopes that feed it, as long as no
cycle arises, a kernel's limits hold, and one row domain serves the whole scope. Every refusal is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..config import StitchConfig
from ..graph.ir import StitchGraph
from ..plan.alignment import Misaligned, align
from .compose import compose
from .epilogue import find_epilogues
from .node import Node, NodeKind, Value
from .quotient import Quotient


@dataclass
class Scope:
    """A stitch op in the making: its nodes, what leaves it, and its graph."""

    nodes: list[Node]
    inputs: list[Value]
    outputs: list[Value]
    graph: StitchGraph


@dataclass
class Boundary:
    """Why an edge is not inside a kernel."""

    producer: str
    consumer: str
    reason: str


@dataclass
class Identified:
    """The result: scopes, matmul epilogues left to TVM, every unit in an executable order, and the boundaries.

    ``left`` names the calls that no scope could take, with the reason; compute-intensive ones are not among them.
    """

    scopes: list[Scope]
    epilogues: list[list[Node]]
    order: list[list[Node]]
    boundaries: list[Boundary] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


def identify(
    nodes: Sequence[Node],
    config: StitchConfig,
    heavy_epilogues: bool = True,
    check: Callable[[StitchGraph], object] = align,
) -> Identified:
    """Partition ``nodes`` (in topological order) into stitch scopes, epilogues and single nodes.

    Args:
        nodes: the calls of a dataflow block.
        config: limits, and what is allowed.
        heavy_epilogues: whether an epilogue may hold heavy element-wise operators. TVM's CPU code computes those
            element by element, so that a vectorized kernel of their own is faster there.
        check: raises Misaligned, with the reason, for a graph that cannot be one kernel.
    """
    return _Identifier(nodes, config, heavy_epilogues, check).run()


class _Identifier:
    def __init__(
        self,
        nodes: Sequence[Node],
        config: StitchConfig,
        heavy_epilogues: bool,
        check: Callable[[StitchGraph], object],
    ):
        self.nodes, self.config, self.heavy_epilogues = nodes, config, heavy_epilogues
        self.check = check
        for i, n in enumerate(nodes):
            n.index = i
        self.quotient = Quotient(nodes)
        self.boundaries: list[Boundary] = []
        self.declined: dict[int, str] = {}

    def run(self) -> Identified:
        self.stitchable = [n.kind is NodeKind.MEMORY and self._alone(n) for n in self.nodes]
        epilogues = self._epilogues() if self.config.epilogues else []
        for i in range(len(self.nodes)):
            if self.stitchable[i]:
                self._join_producers(i)
        if self.config.remote:
            from .remote import join_remote

            join_remote(self.quotient, self._is_scope, self._try_merge)
        self._release_views()
        return self._result(epilogues)

    def _epilogues(self) -> list[list[Node]]:
        found = []
        for chain in find_epilogues(self.quotient, self.stitchable, self.heavy_epilogues):
            scope = chain[0]
            for i in chain[1:]:
                scope = self.quotient.merge(scope, i)
                self.stitchable[i] = False
            found.append([self.nodes[i] for i in chain])
        return found

    def _alone(self, node: Node) -> bool:
        try:
            assert node.graph is not None
            if len(node.inputs) + len(node.outputs) > self.config.max_arguments:
                raise Misaligned(f"it has more than {self.config.max_arguments} arguments (max_arguments)")
            self.check(node.graph)
            return True
        except Misaligned as err:
            self.declined[node.index] = str(err)
        except Exception as err:  # an expression TVM's own analysis refuses: TVM keeps the operator
            self.declined[node.index] = f"{type(err).__name__}: {err}"
        return False

    def _is_scope(self, scope: int) -> bool:
        return all(self.stitchable[i] for i in self.quotient.members[scope])

    # -- growing ------------------------------------------------------------------------------------------------
    def _join_producers(self, i: int) -> None:
        for p in self.quotient.producers[i]:
            a, b = self.quotient.scope_of[p], self.quotient.scope_of[i]
            if a == b:
                continue
            if not self._is_scope(a):
                why = self.declined.get(p) or self.nodes[p].reason or f"{self.nodes[p].kind.value}"
                self._note(p, i, why)
                continue
            reason = self._try_merge(a, b)
            if reason:
                self._note(p, i, reason)

    def _note(self, p: int, i: int, reason: str) -> None:
        self.boundaries.append(Boundary(self.nodes[p].name, self.nodes[i].name, reason))

    def _try_merge(self, a: int, b: int) -> str:
        """Merge two scopes if that is legal; the reason why not otherwise (empty when merged)."""
        q = self.quotient
        if q.would_cycle(a, b):
            return "joining them would make a cycle through an operator outside"
        members = sorted(q.members[a] + q.members[b])
        nodes = [self.nodes[i] for i in members]
        count = sum(len(n.graph.operators) for n in nodes if n.graph is not None)
        if count > self.config.max_operators:
            return f"{count} operators exceed the limit of {self.config.max_operators} (max_operators)"
        outputs = self._outputs(members)
        inputs = {v for n in nodes for v in n.inputs} - {v for n in nodes for v in n.outputs}
        if len(inputs) + len(outputs) > self.config.max_arguments:
            return f"{len(inputs) + len(outputs)} arguments exceed the limit of {self.config.max_arguments}"
        try:
            self.check(compose(nodes, outputs))
        except Misaligned as err:
            return str(err)
        except Exception as err:
            return f"{type(err).__name__}: {err}"
        q.merge(a, b)
        return ""

    def _outputs(self, members: Sequence[int]) -> set[Value]:
        inside = set(members)
        found: set[Value] = set()
        for i in members:
            node = self.nodes[i]
            found |= node.escapes
            for c in self.quotient.consumers[i]:
                if c not in inside:
                    found |= set(node.outputs) & set(self.nodes[c].inputs)
        for i in members:  # a result nobody uses is still written, as its caller declared it
            if not self.quotient.consumers[i]:
                found |= set(self.nodes[i].outputs)
        return found

    # -- views --------------------------------------------------------------------------------------------------
    def _release_views(self) -> None:
        """Take reshapes out of a scope's border, where TVM makes them views that cost nothing."""
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
        members = [m for m in self.quotient.members.pop(scope) if m != i]
        self.quotient.members[i] = [i]
        self.quotient.scope_of[i] = i
        name = members[0]
        self.quotient.members[name] = members
        for m in members:
            self.quotient.scope_of[m] = name
        self.stitchable[i] = False
        return name

    # -- result -------------------------------------------------------------------------------------------------
    def _result(self, epilogues: list[list[Node]]) -> Identified:
        scopes, order = [], []
        for s in self.quotient.topological():
            members = self.quotient.members[s]
            nodes = [self.nodes[i] for i in members]
            order.append(nodes)
            if not self._is_scope(s) or all(n.is_view for n in nodes):
                continue
            found = self._outputs(members)
            outputs = [v for n in nodes for v in n.outputs if v in found]
            made = {v for n in nodes for v in n.outputs}
            inputs = list(dict.fromkeys(v for n in nodes for v in n.inputs if v not in made))
            scopes.append(Scope(nodes, inputs, outputs, compose(nodes, found)))
        left = {self.nodes[i].name: why for i, why in self.declined.items()}
        left |= {n.name: n.reason for n in self.nodes if n.kind is NodeKind.OPAQUE and n.is_call}
        return Identified(scopes, epilogues, order, self.boundaries, left)
