# SPDX-License-Identifier: Apache-2.0
"""Transpositions that the kernel of a compute-intensive operator does as it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .. import compat
from ..graph.extent import same
from ..graph.ir import StitchGraph
from .compose import compose
from .node import Node, NodeKind, Value
from .quotient import Quotient


def find_prologues(
    quotient: Quotient, free: Sequence[bool], anchors: Sequence[int], serves: Callable[[StitchGraph], bool]
) -> dict[int, list[int]]:
    """For those of ``anchors`` where there are some, the nodes that only permute an operand's axes for it alone.

    Args:
        quotient: the graph; no scopes yet.
        free: by node, whether it may be taken.
        anchors: compute-intensive nodes that a template computes.
        serves: whether a template computes such a node and the permutations before it, as one graph.
    """
    found: dict[int, list[int]] = {}
    for i in anchors:
        taken: list[int] = []
        for value in quotient.nodes[i].inputs:
            maker = permuted_for(value, i, quotient, free)
            if maker is None or maker in taken:
                continue
            chosen = sorted([*taken, maker])
            nodes = [quotient.nodes[n] for n in (*chosen, i)]
            if serves(compose(nodes, quotient.nodes[i].outputs)):
                taken = chosen
        if taken:
            found[i] = taken
    return found


def permuted_for(value: Value, user: int, quotient: Quotient, free: Sequence[bool]) -> int | None:
    """The free node that makes ``value`` by permuting axes, for ``user`` and nobody else; None if there is none."""
    maker = quotient.maker.get(value)
    if maker is None or not free[maker] or quotient.consumers[maker] != [user]:
        return None
    node = quotient.nodes[maker]
    return None if node.escapes or not is_permutation(node) else maker


def is_permutation(node: Node) -> bool:
    """Does a node permute the axes of its one input, and nothing else?"""
    graph = node.graph
    if node.kind is not NodeKind.MEMORY or graph is None:
        return False
    if len(graph.operators) != 1 or len(graph.inputs) != 1 or len(node.inputs) != 1:
        return False
    (op,) = graph.operators
    if op.is_reduce or not compat.is_load(op.value) or op.output.dtype != graph.inputs[0].dtype:
        return False
    indices = compat.elements(op.value.indices)
    extents = {axis.var: axis.extent for axis in op.spatial}
    if len(indices) != len(extents) or set(indices) != set(extents):
        return False
    return all(same(extents[i], extent) for i, extent in zip(indices, graph.inputs[0].shape))  # no part of it
