# SPDX-License-Identifier: Apache-2.0
"""Biases, residuals and activations that stay in the kernel of the matmul or convolution before them.

An epilogue is a region of element-wise nodes that starts at a compute-intensive node's result and leaves through one
value. Besides the region's own values it reads vectors, and tensors that are in memory anyway. By default it is taken
when it saves a kernel or a round trip through memory: not when all its users are stitched and might as well compute it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..graph.classify import is_heavy
from ..graph.dtype import item_bytes
from ..graph.ir import Dependency, Span
from .node import Node, NodeKind, Value
from .quotient import Quotient

MOST_NODES = 16
"""Element-wise nodes an epilogue may have."""


@dataclass(frozen=True)
class EpilogueRules:
    """What compute-intensive kernels can hold.

    Attributes:
        heavy: whether an epilogue may have heavy element-wise operators. TVM's CPU code computes those element by
            element, so that a vectorized kernel of their own is faster there.
        greedy: whether it is taken whoever reads its result, unless that would be wider in memory than the
            compute-intensive node's own. It costs nothing where TVM's schedules always compute an epilogue in
            registers, and leaves the functions that TVM's fusion makes, so that what was tuned for them serves.
    """

    heavy: bool = True
    greedy: bool = False


RULES = EpilogueRules()
"""The default ones: a GPU's."""


def find_epilogues(
    quotient: Quotient, stitchable: Sequence[bool], rules: EpilogueRules
) -> Iterator[list[int]]:
    """The epilogues, each as its compute-intensive node followed by the element-wise ones, by node number."""
    finder = _Finder(quotient, stitchable, rules)
    for i, node in enumerate(quotient.nodes):
        if node.kind is NodeKind.COMPUTE and len(node.outputs) == 1:
            region = finder.region(i)
            if len(region) > 1:
                finder.taken |= set(region)
                yield region


class _Finder:
    def __init__(self, quotient: Quotient, stitchable: Sequence[bool], rules: EpilogueRules):
        self.quotient, self.nodes, self.rules = quotient, quotient.nodes, rules
        self.stitchable = list(stitchable)
        self.taken: set[int] = set()
        self.maker = {v: i for i, n in enumerate(self.nodes) for v in n.outputs}
        self.users: dict[Value, list[int]] = {}
        for i, n in enumerate(self.nodes):
            for v in dict.fromkeys(n.inputs):
                self.users.setdefault(v, []).append(i)

    def region(self, start: int) -> list[int]:
        """The largest region from ``start`` on that one value leaves and that is worth it; else ``start`` alone."""
        region = [start]
        values: set[Value] = set(self.nodes[start].outputs)
        best = list(region)
        waiting = list(self.quotient.consumers[start])
        while waiting and len(region) <= MOST_NODES:
            user = min(waiting)
            waiting.remove(user)
            if user in region or not self._joins(user, region, values):
                continue
            region.append(user)
            values |= set(self.nodes[user].outputs)
            waiting += [c for c in self.quotient.consumers[user] if c not in waiting]
            if self._leaving(region) == [user] and self._is_end(user, region):
                best = list(region)
        return best if self.rules.greedy or self._pays(best[-1]) else [start]

    def _joins(self, user: int, region: Sequence[int], values: set[Value]) -> bool:
        node = self.nodes[user]
        if not self._is_memory(user) or not (node.escapes or self.quotient.consumers[user]):
            return False
        return _is_pointwise(
            node, values, self.rules.heavy, lambda other: self._is_stored(other, user, region)
        )

    def _is_memory(self, i: int) -> bool:
        return self.stitchable[i] and i not in self.taken

    def _leaving(self, region: Sequence[int]) -> list[int]:
        """The nodes of a region whose results are used outside it."""
        inside = set(region)
        return [
            i
            for i in region
            if self.nodes[i].escapes or any(c not in inside for c in self.quotient.consumers[i])
        ]

    def _is_end(self, end: int, region: Sequence[int]) -> bool:
        """May the region end here: does it pay, or is the result no wider than the compute-intensive node's own?"""
        if not self.rules.greedy or self._pays(end):
            return True
        return _width(self.nodes[end]) <= _width(self.nodes[region[1]], self.nodes[region[0]].outputs[0])

    def _pays(self, end: int) -> bool:
        """False when stitch ops alone read the region's result, and might as well compute it."""
        readers, escapes = self._readers(self.nodes[end].outputs[0])
        return escapes or not all(self._is_memory(r) for r in readers)

    def _readers(self, value: Value) -> tuple[list[int], bool]:
        """The nodes that read a value, itself or as a view, and whether it is needed beyond the graph."""
        escapes = False
        readers: dict[int, None] = {}
        waiting = [value]
        while waiting:
            value = waiting.pop()
            maker = self.maker.get(value)
            escapes |= maker is not None and value in self.nodes[maker].escapes
            for user in self.users.get(value, []):
                if self.nodes[user].is_view:
                    waiting += self.nodes[user].outputs
                else:
                    readers[user] = None
        return list(readers), escapes

    def _is_stored(self, value: Value, user: int, region: Sequence[int]) -> bool:
        """Is a value in memory anyway, and would no stitch op after the region read it a second time?"""
        maker = self.maker.get(value)
        while maker is not None and self.nodes[maker].is_view:
            value = self.nodes[maker].inputs[0]
            maker = self.maker.get(value)
        readers, escapes = self._readers(value)
        if maker is not None and self._is_memory(maker) and not escapes:
            if all(self._is_memory(r) for r in readers):
                return False
        after = self.quotient.below[region[0]]
        return not any(
            self._is_memory(r) and after >> r & 1 for r in readers if r != user and r not in region
        )


def _width(node: Node, value: Value | None = None) -> int:
    """Bytes of an element of a node's result, or of one of its inputs."""
    graph = node.graph
    assert graph is not None
    tensor = graph.outputs[0] if value is None else graph.inputs[list(node.inputs).index(value)]
    return item_bytes(tensor.dtype)


def _is_pointwise(node: Node, region: set[Value], heavy: bool, is_stored: Callable[[Value], bool]) -> bool:
    """Is the node element-wise on the region's values, all else it reads being vectors (a bias) or stored tensors?"""
    graph = node.graph
    assert graph is not None
    if graph.reduces or len(node.outputs) != 1 or node.is_view:
        return False
    if not heavy and any(is_heavy(op.value) for op in graph.operators):
        return False
    shape = [str(s) for s in graph.outputs[0].shape]
    whole, spread = set(), set()
    for value, t in zip(node.inputs, graph.inputs):
        if value in region:
            if [str(s) for s in t.shape] != shape:
                return False
            whole.add(t)
        elif not (isinstance(t.size, int) and len([s for s in t.shape if s != 1]) <= 1):
            if not is_stored(value):
                return False
            spread.add(t)
    for op in graph.operators:
        for a in op.accesses:
            if a.tensor.producer is not None or a.tensor in whole:
                if a.span is not Span.ALL or op.dependency(a) is not Dependency.ONE_TO_ONE:
                    return False
            elif a.tensor in spread and (a.guarded or a.span is Span.OTHER):
                return False
    return True
