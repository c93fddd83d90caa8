# SPDX-License-Identifier: Apache-2.0
"""What was identified in a dataflow block, by the names of its variables: what reports are made from."""

from __future__ import annotations

from typing import Any

from ..report.flow import Flow, FlowNode, Refusal
from ..scope.identify import Identified
from .dataflow import BlockView


def flow_of(view: BlockView, found: Identified) -> Flow:
    """The calls of a block and the edges on which kernels end, without anything of TVM's."""
    made = {value: i for i, node in enumerate(view.nodes) for value in node.outputs}
    nodes = tuple(
        FlowNode(
            tuple(_name(view.named(v)) for v in node.outputs),
            node.name,
            node.kind.value,
            node.reason,
            tuple(dict.fromkeys(made[v] for v in node.inputs if v in made)),
        )
        for node in view.nodes
    )
    refusals = tuple(Refusal(*b.edge, b.reason) for b in found.boundaries)
    return Flow(nodes, refusals, dict(found.left))


def _name(value: Any) -> str:
    """A variable's name; that of the whole and a number, for one result of several that the program does not name."""
    if isinstance(value, tuple):
        return f"{value[0].name}[{value[1]}]"
    return str(value.name)
