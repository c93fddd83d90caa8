# SPDX-License-Identifier: Apache-2.0
"""Whether a node is element-wise on some of its inputs, as what stays in a matmul's kernel has to be."""

from __future__ import annotations

from ..compat import kind
from ..graph.extent import same_shape
from ..graph.ir import Access, Dependency, Operator, Span, Tensor
from .node import Node, Value


def tensors_beside(node: Node, values: set[Value]) -> dict[Value, Tensor] | None:
    """The tensors other than vectors that a node reads besides ``values``; None if it is not element-wise on those.

    It is when it computes one tensor of their shape, element by element, and broadcasts everything else.
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
        elif _is_vector(t):
            vectors.add(t)
        else:
            others[value] = t
    for op in graph.operators:
        if not _is_elementwise(op, inside, vectors):
            return None
        if any(a.tensor in inside for a in op.accesses):
            inside.add(op.output)
    return others if graph.outputs[0] in inside else None


def _is_vector(t: Tensor) -> bool:
    return isinstance(t.size, int) and len([s for s in t.shape if s != 1]) <= 1


def _is_elementwise(op: Operator, inside: set[Tensor], vectors: set[Tensor]) -> bool:
    for a in op.accesses:
        if a.tensor in inside:
            if a.span is not Span.ALL or op.dependency(a) is not Dependency.ONE_TO_ONE:
                return False
        elif a.tensor not in vectors and not _is_broadcast(op, a):
            return False
    return True


def _is_broadcast(op: Operator, access: Access) -> bool:
    """Is every index constant or an axis of the operator's result, in order?"""
    if access.guarded:
        return False
    place = {axis.var: i for i, axis in enumerate(op.spatial)}
    last = -1
    for index in access.indices:
        if kind(index) == "IntImm":
            continue
        if index not in place or place[index] <= last:
            return False
        last = place[index]
    return True
