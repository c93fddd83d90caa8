# SPDX-License-Identifier: Apache-2.0
"""Biases and activations that stay in the kernel of the matmul or convolution before them, as TVM's fusion has it.

An epilogue is a region of element-wise nodes that starts at a compute-intensive node's result and leaves through one
value. It is taken when it saves a kernel or a round trip through memory: not when its one user is stitched anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..graph.classify import is_heavy
from ..graph.ir import Dependency, Span
from .node import Node, NodeKind, Value
from .quotient import Quotient

MOST_NODES = 16
"""Element-wise nodes an epilogue may have."""


def find_epilogues(quotient: Quotient, stitchable: Sequence[bool], heavy: bool) -> Iterator[list[int]]:
    """The epilogues, each as its compute-intensive node followed by the element-wise ones, by node number."""
    taken: set[int] = set()
    for i, node in enumerate(quotient.nodes):
        if node.kind is NodeKind.COMPUTE and len(node.outputs) == 1:
            region = _region(quotient, stitchable, heavy, i)
            if len(region) > 1 and not taken & set(region):
                taken |= set(region)
                yield region


def _region(quotient: Quotient, stitchable: Sequence[bool], heavy: bool, start: int) -> list[int]:
    """The largest region from ``start`` on that one value leaves and whose end no stitch op would take for nothing."""
    nodes = quotient.nodes
    region = [start]
    values: set[Value] = set(nodes[start].outputs)
    best = list(region)
    waiting = list(quotient.consumers[start])
    while waiting and len(region) <= MOST_NODES:
        user = min(waiting)
        waiting.remove(user)
        if user in region or not stitchable[user] or not _pointwise_on(nodes[user], values, heavy):
            continue
        region.append(user)
        values |= set(nodes[user].outputs)
        waiting += [c for c in quotient.consumers[user] if c not in waiting]
        leaving = _leaving(quotient, region)
        if leaving == [user]:
            best = list(region)
    end = best[-1]
    return best if len(best) > 1 and _pays(quotient, stitchable, end) else [start]


def _leaving(quotient: Quotient, region: list[int]) -> list[int]:
    """The nodes of a region whose results are used outside it."""
    inside = set(region)
    return [
        i for i in region if quotient.nodes[i].escapes or any(c not in inside for c in quotient.consumers[i])
    ]


def _pays(quotient: Quotient, stitchable: Sequence[bool], end: int) -> bool:
    """False when one stitch op reads the region's result, and might as well compute it."""
    if quotient.nodes[end].escapes:
        return True
    users = quotient.consumers[end]
    while len(users) == 1 and quotient.nodes[users[0]].is_view and not quotient.nodes[users[0]].escapes:
        users = quotient.consumers[users[0]]
    return not (len(users) == 1 and stitchable[users[0]])


def _pointwise_on(node: Node, region: set[Value], heavy: bool) -> bool:
    """Is the node element-wise on the region's values, all else it reads being vectors at most (a bias)?"""
    graph = node.graph
    assert graph is not None
    if graph.reduces or len(node.outputs) != 1 or node.is_view:
        return False
    if not heavy and any(is_heavy(op.value) for op in graph.operators):
        return False
    shape = [str(s) for s in graph.outputs[0].shape]
    whole = set()
    for value, t in zip(node.inputs, graph.inputs):
        if value in region:
            if [str(s) for s in t.shape] != shape:
                return False
            whole.add(t)
        elif not (isinstance(t.size, int) and len([s for s in t.shape if s != 1]) <= 1):
            return False
    for op in graph.operators:
        for a in op.accesses:
            if a.tensor.producer is not None or a.tensor in whole:
                if a.span is not Span.ALL or op.dependency(a) is not Dependency.ONE_TO_ONE:
                    return False
    return True
