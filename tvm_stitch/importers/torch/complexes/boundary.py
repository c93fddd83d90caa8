# SPDX-License-Identifier: Apache-2.0
"""Complex inputs, constants and results of a program: real tensors with a last axis of two elements.

TVM has no complex type. The graph gets a ``view_as_complex`` behind each complex input, and a ``view_as_real`` in front
of each complex result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from .parts import is_complex

aten = torch.ops.aten


def with_real_boundary(module: Any) -> Any:
    """Return a graph module whose inputs and results are real. It is the given one if that has no complex ones.

    Args:
        module: the graph module of an exported program, which stays as it is.
    """
    nodes = list(module.graph.nodes)
    outside = [each for node in nodes if node.op == "output" for each in node.all_input_nodes]
    outside += [node for node in nodes if node.op == "placeholder"]
    if not any(is_complex(node.meta.get("val")) for node in outside):
        return module
    graph = fx.Graph()
    values: dict[Any, Any] = {}
    for node in nodes:
        if node.op == "output":
            real = {each: _as_result(graph, each, values[each]) for each in node.all_input_nodes}
            result = graph.output(fx.map_arg(node.args[0], real.__getitem__))
            result.meta = dict(node.meta)
            continue
        values[node] = graph.node_copy(node, values.__getitem__)
        if node.op == "placeholder" and is_complex(value := node.meta.get("val")):
            real_input = values[node]
            real_input.meta = {**node.meta, "val": torch.view_as_real(value)}
            real_input.meta.pop("tensor_meta", None)
            values[node] = _view(graph, aten.view_as_complex.default, real_input, value)
    return fx.GraphModule(module, graph)


def _as_result(graph: Any, node: Any, copied: Any) -> Any:
    value = node.meta.get("val")
    if not is_complex(value):
        return copied
    return _view(graph, aten.view_as_real.default, copied, torch.view_as_real(value.resolve_conj()))


def _view(graph: Any, operator: Any, node: Any, value: Any) -> Any:
    view = graph.call_function(operator, (node,))
    view.meta = {"val": value}
    return view
