# SPDX-License-Identifier: Apache-2.0
"""Compose the graphs of several nodes into the graph of one stitch op."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

from ..graph.ir import StitchGraph, Tensor, copied
from .node import Node, Value

Wiring: TypeAlias = tuple[tuple[StitchGraph | None, tuple[int, ...], tuple[tuple[int, bool], ...]], ...]
"""For each node its graph (by identity), its inputs and its outputs, each output with whether it leaves the nodes.

Values are numbered by their first occurrence over all nodes.
"""


def wiring(nodes: Sequence[Node], outputs: Collection[Value]) -> Wiring:
    """Return a key of the graph that :func:`compose` builds: nodes with equal keys compose to equal graphs."""
    numbers: dict[Value, int] = {}
    return tuple(
        (
            node.graph,
            tuple(numbers.setdefault(v, len(numbers)) for v in node.inputs),
            tuple((numbers.setdefault(v, len(numbers)), v in outputs) for v in node.outputs),
        )
        for node in nodes
    )


def compose(nodes: Sequence[Node], outputs: Collection[Value], name: str = "stitch") -> StitchGraph:
    """Return one graph for ``nodes`` (in topological order), with the values in ``outputs`` as its outputs.

    Values that no node of the set computes become the graph's inputs.
    """
    values: dict[Value, Tensor] = {}
    inputs: list[Tensor] = []
    operators = []
    for node in nodes:
        graph = node.graph
        assert graph is not None
        tensors: dict[Tensor, Tensor] = {}
        for value, t in zip(node.inputs, graph.inputs):
            if value not in values:
                values[value] = Tensor(t.name, t.shape, t.dtype, t.buffer)
                inputs.append(values[value])
            tensors[t] = values[value]
        for op in graph.operators:
            tensors[op.output] = Tensor(op.output.name, op.output.shape, op.output.dtype, op.output.buffer)
        for value, t in zip(node.outputs, graph.outputs):
            values[value] = tensors[t]
        operators += [copied(op, tensors) for op in graph.operators]
    return StitchGraph(name, inputs, operators, [values[v] for n in nodes for v in n.outputs if v in outputs])
