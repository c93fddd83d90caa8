# SPDX-License-Identifier: Apache-2.0
"""Transpositions, gathers and borders of operands that the kernel of a compute-intensive operator computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .. import compat
from ..graph.access import branches
from ..graph.extent import same
from ..graph.gather import gather_of
from ..graph.ir import Operator, StitchGraph
from .compose import compose
from .node import Node, NodeKind, Value
from .quotient import Quotient


def find_prologues(
    quotient: Quotient,
    free: Sequence[bool],
    anchors: Sequence[int],
    serves: Callable[[StitchGraph], bool],
    is_read: Callable[[Node], bool],
    before: Mapping[int, Sequence[int]],
) -> dict[int, list[int]]:
    """Return the prologue of each anchor that has one: the nodes that compute an operand for this anchor alone.

    The nodes permute an operand's axes, gather its matrices, or put a border of one value around it. Callers look for
    borders first, because nothing else computes a border in its kernel.

    Args:
        quotient: the graph, without scopes yet.
        free: by node, whether it may be taken.
        anchors: compute-intensive nodes that a template computes.
        serves: returns whether a template computes such a node together with the nodes before it, as one graph.
        is_read: returns whether a node is of the wanted kind, ``is_border`` or ``is_moved``.
        before: prologues that are taken already.
    """
    prologues: dict[int, list[int]] = {}
    for i in anchors:
        taken = list(before.get(i, ()))
        for value in quotient.nodes[i].inputs:
            user = i
            while True:
                maker = quotient.maker.get(value)
                if maker is not None and maker in taken:
                    user, value = maker, quotient.nodes[maker].inputs[0]
                    continue
                maker = maker_for(value, user, quotient, free, is_read)
                if maker is None:
                    break
                chosen = sorted([*taken, maker])
                nodes = [quotient.nodes[n] for n in (*chosen, i)]
                if not serves(compose(nodes, quotient.nodes[i].outputs)):
                    break
                taken, user, value = chosen, maker, quotient.nodes[maker].inputs[0]
        if taken:
            prologues[i] = taken
    return prologues


def maker_for(
    value: Value, user: int, quotient: Quotient, free: Sequence[bool], serves: Callable[[Node], bool]
) -> int | None:
    """Return the free node that computes ``value`` for ``user`` alone, if it ``serves``, else None."""
    maker = quotient.maker.get(value)
    if maker is None or not free[maker] or quotient.consumers[maker] != [user]:
        return None
    node = quotient.nodes[maker]
    return None if node.escapes or not serves(node) else maker


def _only_operator(node: Node) -> Operator | None:
    """Return the operator of a memory-intensive node that has a single operator and a single input, else None."""
    graph = node.graph
    if node.kind is not NodeKind.MEMORY or graph is None:
        return None
    if len(graph.operators) != 1 or len(graph.inputs) != 1 or len(node.inputs) != 1:
        return None
    return graph.operators[0]


def is_border(node: Node) -> bool:
    """Return whether a node only puts a border of one value around its single input."""
    op = _only_operator(node)
    chosen = None if op is None or op.is_reduce else branches(op.value)
    return chosen is not None and compat.is_load(chosen[1]) and not compat.operands(chosen[2])


def is_moved(node: Node) -> bool:
    """Return whether a node permutes the axes of its only input, or gathers slices of its first one."""
    return is_permutation(node) or is_gather(node)


def is_gather(node: Node) -> bool:
    """Return whether a node only gathers slices of its first input by the numbers in its second one."""
    graph = node.graph
    if (
        node.kind is not NodeKind.MEMORY
        or graph is None
        or len(graph.operators) != 1
        or len(node.inputs) != 2
    ):
        return False
    gather = gather_of(graph.operators[0])
    return gather is not None and graph.inputs == [gather.source, gather.numbers]


def is_permutation(node: Node) -> bool:
    """Return whether a node only permutes the axes of its single input."""
    op = _only_operator(node)
    if op is None or op.is_reduce or not compat.is_load(op.value):
        return False
    source = op.inputs[0]
    if op.output.dtype != source.dtype:
        return False
    indices = compat.elements(op.value.indices)
    extents = {axis.var: axis.extent for axis in op.spatial}
    if len(indices) != len(extents) or set(indices) != set(extents):
        return False
    return all(same(extents[i], extent) for i, extent in zip(indices, source.shape))  # not a slice of it
