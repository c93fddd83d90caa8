# SPDX-License-Identifier: Apache-2.0
"""Transpositions that a convolution's kernel does as it reads: its data is copied there anyway, border by border."""

from __future__ import annotations

from collections.abc import Sequence

from .. import compat
from ..graph.extent import same
from .node import Node, NodeKind
from .quotient import Quotient


def find_prologues(quotient: Quotient, free: Sequence[bool], anchors: Sequence[int]) -> dict[int, list[int]]:
    """For those of ``anchors`` where there is one, the node that only permutes its data's axes for it alone.

    Args:
        quotient: the graph; no scopes yet.
        free: by node, whether it may be taken.
        anchors: convolutions whose kernels read their data in any order.
    """
    found = {}
    for i in anchors:
        maker = quotient.maker.get(quotient.nodes[i].inputs[0])
        if maker is None or not free[maker] or quotient.consumers[maker] != [i]:
            continue
        if is_permutation(quotient.nodes[maker]) and not quotient.nodes[maker].escapes:
            found[i] = [maker]
    return found


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
