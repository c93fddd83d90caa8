# SPDX-License-Identifier: Apache-2.0
"""Biases, residuals and activations that stay in the kernel of the matmul or convolution before them.

An epilogue is a region of element-wise nodes that starts at a compute-intensive node's result and leaves through
one value. Besides the region's values it reads vectors, and tensors that are in memory anyway. By default it is
taken if it saves a kernel or a round trip through memory. If stitch ops alone use its result, they could
compute it themselves.

A residual that would have to be written for this, or that the stitch op behind the region reads too, is stitched
instead. On a CPU heavy operators stay only if a template of this package computes the matmul. TVM computes exp or
erf element by element through libm. A kernel of polynomials saves more than the round trip through memory costs.
With a template, transpositions of the region's operands are taken in too, and one behind the region. A library's
kernels (``-libs``) hold no epilogue. Relax's code for CPUs has no schedules and holds none either, so an epilogue
has to pay.

If TVM schedules the matmul, epilogues are taken greedily, because they move the same bytes but take less time. An
encoder layer (batch 8, H200) took 874 us of kernels with epilogues in the matmuls, 890 without. Tuners also store
records by fused function, so with TVM's own epilogues all records apply to the stitched build.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from ..compat import kind
from ..cost.choices import Choices
from ..graph.classify import is_heavy
from ..graph.dtype import item_bytes
from ..graph.extent import same_shape
from ..graph.ir import Access, Dependency, Operator, Span, StitchGraph, Tensor
from .node import Node, NodeKind, Value
from .prologue import is_permutation, maker_for
from .quotient import Quotient


def no_template(_graph: StitchGraph) -> bool:
    """Return False: no template computes the graph."""
    return False


@dataclass(frozen=True)
class EpilogueRules:
    """Rules for the epilogues that compute-intensive kernels can hold.

    Attributes:
        heavy: whether an epilogue may have heavy element-wise operators. TVM's CPU code computes those element by
            element, so that a separate vectorized kernel is faster there.
        greedy: whether an epilogue is taken whatever reads its result, unless the result is wider in memory than the
            compute-intensive node's result. It costs nothing if TVM's schedules always compute an epilogue in
            registers. It also keeps the functions of TVM's fusion, so that schedules tuned for them apply.
        template: returns whether a template of this package computes a compute-intensive graph. Its kernels are
            vectorized throughout, and write a result in any order of its axes.
        permuted: the same for such a graph behind permutations of its operands' axes.
    """

    heavy: bool = True
    greedy: bool = False
    template: Callable[[StitchGraph], bool] = no_template
    permuted: Callable[[StitchGraph], bool] = no_template

    def is_template(self, node: Node) -> bool:
        """Return whether a template of this package computes a compute-intensive node."""
        return node.graph is not None and self.template(node.graph)

    def holds(self, node: Node) -> bool:
        """Return whether a node is fast within a compute-intensive kernel of TVM."""
        return self.heavy or node.graph is None or not any(is_heavy(op.value) for op in node.graph.operators)


RULES = EpilogueRules()
"""The default rules: an epilogue has to pay, whatever operators it has."""


def find_epilogues(
    quotient: Quotient, stitchable: Sequence[bool], rules: EpilogueRules, choices: Choices
) -> Iterator[list[int]]:
    """Yield each epilogue as node numbers: its compute-intensive node, then the element-wise ones."""
    finder = _Finder(quotient, stitchable, rules, choices)
    for i, node in enumerate(quotient.nodes):
        if node.kind is NodeKind.COMPUTE and len(node.outputs) == 1:
            region = finder.region(i)
            if len(region) > 1:
                finder.take(region)
                yield region


class _Finder:
    def __init__(
        self, quotient: Quotient, stitchable: Sequence[bool], rules: EpilogueRules, choices: Choices
    ):
        self.quotient, self.nodes, self.rules, self.choices = quotient, quotient.nodes, rules, choices
        self.free = list(stitchable)  # by node: free for epilogues and stitch ops
        self.readers: dict[Value, tuple[Collection[int], bool]] = {}  # of the values that were asked for

    def take(self, region: Sequence[int]) -> None:
        """Mark the region's nodes as used: no other epilogue or stitch op may take them."""
        for i in region:
            self.free[i] = False

    def region(self, start: int) -> list[int]:
        """Return the largest region from ``start`` that one value leaves and that pays, else ``start`` alone."""
        region = _Region([start], set(self.nodes[start].outputs), self.rules.is_template(self.nodes[start]))
        best = [start]
        waiting = list(self.quotient.consumers[start])
        while waiting and len(region.nodes) <= self.choices.epilogue_nodes:
            user = min(waiting)
            waiting.remove(user)
            if user in region.nodes or not self._joins(user, region):
                continue
            waiting += [c for c in self.quotient.consumers[user] if c not in waiting]
            if self._leaving(region.nodes) == [user] and self._is_end(user, region):
                best = list(region.nodes)
        return best if self.rules.greedy or self._pays(best[-1]) or self._narrows(best, region) else [start]

    def _joins(self, user: int, region: _Region) -> bool:
        """Add a user of the region's values to it if it is element-wise and its other operands are available."""
        node = self.nodes[user]
        if not self.free[user] or not (node.escapes or self.quotient.consumers[user]):
            return False
        if not region.vectorized and not self.rules.holds(node):
            return False
        if region.permuted:
            return False
        if region.vectorized and node.inputs[0] in region.values and is_permutation(node):
            region.nodes.append(user)
            region.values |= set(node.outputs)
            region.permuted = True
            return True
        others = other_tensors(node, region.values)
        if others is None:
            return False
        makers = {v: self._computed_on_read(v, user, region) for v in others}
        if not all(maker is not None or self._is_stored(v, user, region) for v, maker in makers.items()):
            return False
        taken = [maker for maker in makers.values() if maker is not None]
        region.nodes += [*taken, user]
        region.values |= {v for i in (*taken, user) for v in self.nodes[i].outputs}
        region.others |= {v if m is None else self._read_by(m) for v, m in makers.items()}
        return True

    def _computed_on_read(self, value: Value, user: int, region: _Region) -> int | None:
        """Return the node that computes ``value`` from a stored tensor for ``user`` alone, else None.

        A template's kernel computes such a node while it reads the tensor.
        """
        if not region.vectorized:
            return None
        widened = maker_for(value, user, self.quotient, self.free, lambda node: node.widens)
        if widened is not None:
            source = self.nodes[widened].widened
            return widened if self._is_stored(source, widened, region) else None
        return self._permuted(value, user)

    def _read_by(self, maker: int) -> Value:
        node = self.nodes[maker]
        return node.inputs[0] if node.widened is None else node.widened

    def _permuted(self, value: Value, user: int) -> int | None:
        """Return the node that permutes the axes of a stored tensor for ``user`` alone, else None.

        The kernel reads the tensor in that order.
        """
        maker = maker_for(value, user, self.quotient, self.free, is_permutation)
        if maker is None:
            return None
        source = self.quotient.maker.get(self._viewed(self.nodes[maker].inputs[0]))
        return maker if source is None or not self.free[source] else None

    def _leaving(self, region: Sequence[int]) -> list[int]:
        """Return the nodes of a region whose results are used outside of it."""
        inside = set(region)
        return [
            i
            for i in region
            if self.nodes[i].escapes or any(c not in inside for c in self.quotient.consumers[i])
        ]

    def _is_end(self, end: int, region: _Region) -> bool:
        """Return whether the region may end here.

        A stitch op behind the region must not read an operand of it again, and the result must not be wider in
        memory.
        """
        if any(self._is_read_behind(v, region) for v in region.others):
            return False
        if self._pays(end):
            return True
        if not self.rules.greedy:
            return not self.nodes[end].widens  # the reader widens it instead
        (result,) = self.nodes[region.nodes[0]].outputs
        first = next(self.nodes[i] for i in region.nodes[1:] if result in self.nodes[i].inputs)
        return item_bytes(_dtype(self.nodes[end])) <= item_bytes(_dtype(first, result))

    def _pays(self, end: int) -> bool:
        """Return whether the region's result has other readers than stitch ops, which could compute it themselves."""
        readers, escapes = self._readers(self.nodes[end].outputs[0])
        return escapes or not all(self.free[r] for r in readers)

    def _narrows(self, nodes: Sequence[int], region: _Region) -> bool:
        """Return whether a template would write fewer bytes than its matmul's result has, as if it quantizes the
        result.
        """
        (product,) = self.nodes[nodes[0]].outputs
        first = next((self.nodes[i] for i in nodes[1:] if product in self.nodes[i].inputs), None)
        if first is None or not region.vectorized:
            return False
        return item_bytes(_dtype(self.nodes[nodes[-1]])) < item_bytes(_dtype(first, product))

    def _readers(self, value: Value) -> tuple[Collection[int], bool]:
        """Return the nodes that read a value, directly or through views, and whether the value is used beyond the
        graph.
        """
        known = self.readers.get(value)
        if known is None:
            known = self.readers[value] = self._found_readers(value)
        return known

    def _found_readers(self, value: Value) -> tuple[Collection[int], bool]:
        escapes = False
        readers: dict[int, None] = {}
        waiting = [value]
        while waiting:
            value = waiting.pop()
            maker = self.quotient.maker.get(value)
            escapes |= maker is not None and value in self.nodes[maker].escapes
            for user in self.quotient.users.get(value, []):
                if self.nodes[user].is_view:
                    waiting += self.nodes[user].outputs
                else:
                    readers[user] = None
        return readers.keys(), escapes

    def _is_stored(self, value: Value, user: int, region: _Region) -> bool:
        """Return whether a value is in memory anyway.

        It is, unless all its readers could form one stitch op with its producer.
        """
        value = self._viewed(value)
        maker = self.quotient.maker.get(value)
        if maker is None or not self.free[maker]:
            return True
        readers, escapes = self._readers(value)
        if escapes:
            return True
        below = self.quotient.below[self.quotient.scope_of[user]]
        return any(not self.free[r] or (below >> r & 1 and r not in self._behind(region)) for r in readers)

    def _is_read_behind(self, value: Value, region: _Region) -> bool:
        """Return whether a stitch op behind the region would read an operand of the region a second time."""
        readers, _ = self._readers(self._viewed(value))
        behind = self._behind(region)
        few, many = (behind, readers) if len(behind) < len(readers) else (readers, behind)
        return any(i in many for i in few if i not in region.nodes)

    def _behind(self, region: _Region) -> set[int]:
        """Return the nodes that a stitch op behind the region may hold: no compute-intensive node lies in between."""
        if region.behind is None:
            region.behind = set()
            waiting = [region.nodes[0]]
            while waiting:
                for c in self.quotient.consumers[waiting.pop()]:
                    if c not in region.behind and self.free[c]:
                        region.behind.add(c)
                        waiting.append(c)
        return region.behind

    def _viewed(self, value: Value) -> Value:
        """Return the value from which a chain of views starts."""
        maker = self.quotient.maker.get(value)
        while maker is not None and self.nodes[maker].is_view:
            value = self.nodes[maker].inputs[0]
            maker = self.quotient.maker.get(value)
        return value


@dataclass
class _Region:
    """An epilogue under construction: its nodes (the first is compute-intensive), their values, and its other
    operands.

    ``vectorized`` says that a template computes it, ``permuted`` that it ends with a permutation of axes.
    """

    nodes: list[int]
    values: set[Value]
    vectorized: bool
    permuted: bool = False
    others: set[Value] = field(default_factory=set)
    behind: set[int] | None = None


def _dtype(node: Node, value: Value | None = None) -> str:
    """Return the dtype of a node's result, or of one of its inputs."""
    graph = node.graph
    assert graph is not None
    return (graph.outputs[0] if value is None else graph.inputs[list(node.inputs).index(value)]).dtype


def other_tensors(node: Node, values: set[Value]) -> dict[Value, Tensor] | None:
    """Return the tensors other than vectors that a node reads besides ``values``, or None if it is not
    element-wise.

    A node is element-wise if it computes one tensor of the shape of ``values`` from their elements at the same
    position, and broadcasts everything else.
    """
    graph = node.graph
    assert graph is not None
    if graph.reduces or len(node.outputs) != 1 or node.is_view:
        return None
    shape = graph.outputs[0].shape
    inside: set[Tensor] = set()
    vectors: set[Tensor] = set()
    others: dict[Value, Tensor] = {}
    for value, t in zip(node.inputs, graph.inputs):
        if value in values:
            if not same_shape(t.shape, shape):
                return None
            inside.add(t)
        elif isinstance(t.size, int) and len([s for s in t.shape if s != 1]) <= 1:
            vectors.add(t)
        else:
            others[value] = t
    for op in graph.operators:
        if not _is_elementwise(op, inside, vectors):
            return None
        if any(a.tensor in inside for a in op.accesses):
            inside.add(op.output)
    return others if graph.outputs[0] in inside else None


def _is_elementwise(op: Operator, inside: set[Tensor], vectors: set[Tensor]) -> bool:
    for a in op.accesses:
        if a.tensor in inside:
            if a.span is not Span.ALL or op.dependency(a) is not Dependency.ONE_TO_ONE:
                return False
        elif a.tensor not in vectors and not _is_broadcast(op, a):
            return False
    return True


def _is_broadcast(op: Operator, access: Access) -> bool:
    """Return whether the access's indices are constants or axes of the operator's result, in order."""
    if access.guarded:
        return False
    position = {axis.var: i for i, axis in enumerate(op.spatial)}
    last = -1
    for index in access.indices:
        if kind(index) == "IntImm":
            continue
        if index not in position or position[index] <= last:
            return False
        last = position[index]
    return True
