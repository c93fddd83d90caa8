# SPDX-License-Identifier: Apache-2.0
"""Parts of stitch scopes that the convolution kernel in front of them computes.

A convolution's kernel of this package may compute element-wise nodes behind it (``Node.takes``). If they are a whole
scope, a later pass lets the kernel compute the scope, and nothing is done here. If a scope does something else as well,
such as the mean of an activation, the part pays if the scope writes its result anyway. The convolution's own result is
then neither written nor read. Other parts move as many bytes as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..cost.choices import Choices
from ..graph.extent import is_number
from .compose import compose
from .identified import inputs_of
from .node import Node, Value

Outputs = Callable[[Sequence[Node]], set[Value]]
"""Returns the values that leave a set of nodes."""


def taken_part(kernel: Node, scope: Sequence[Node], outputs: Outputs, choices: Choices) -> list[Node]:
    """Return the nodes of a scope that the kernel of an opaque call computes in its place, an empty list if none.

    Args:
        kernel: the call. Only the scope reads its result.
        scope: nodes in topological order.
        outputs: see :data:`Outputs`.
        choices: the device's constants of choice.
    """
    if _takes(kernel, scope, outputs):
        return []
    computed = {value for node in scope for value in node.outputs}
    values = set(kernel.outputs)
    part: list[Node] = []
    best: list[Node] = []
    for node in scope:
        others = [value for value in node.inputs if value not in values]
        if len(others) == len(node.inputs) or not computed.isdisjoint(others):
            continue
        if len(part) == choices.epilogue_nodes or not _takes(kernel, [*part, node], outputs):
            continue
        part = [*part, node]
        values.update(node.outputs)
        if _pays(kernel, part, scope, outputs):
            best = part
    return best


def _takes(kernel: Node, nodes: Sequence[Node], outputs: Outputs) -> bool:
    """Return whether the kernel can compute nodes as well."""
    assert kernel.takes is not None
    graph = compose(nodes, outputs(nodes))
    return kernel.takes(graph, inputs_of(nodes).index(kernel.outputs[0]))


def _pays(kernel: Node, part: Sequence[Node], scope: Sequence[Node], outputs: Outputs) -> bool:
    """Return whether fewer bytes are moved if the kernel computes a part of a scope.

    The scope must write all results of the part anyway. The rest must read at most one of them, and no larger operand
    of the part.
    """
    rest = {value for node in scope if node not in part for value in node.inputs}
    results = outputs(part)
    read_twice = rest & (_large_operands(part) | set(kernel.outputs))
    return results <= outputs(scope) and len(results & rest) <= 1 and not read_twice


def _large_operands(nodes: Sequence[Node]) -> set[Value]:
    """Return the values from outside that nodes read, but for vectors."""
    large: set[Value] = set()
    for node in nodes:
        assert node.graph is not None
        for value, tensor in zip(node.inputs, node.graph.inputs):
            if sum(not is_number(extent, 1) for extent in tensor.shape) > 1:
                large.add(value)
    return large.difference(value for node in nodes for value in node.outputs)
