# SPDX-License-Identifier: Apache-2.0
"""Replace nodes that are functions of other operators by the bodies of these functions.

A model may bring functions of its own. ONNX also defines some of its operators as functions, such as Celu. ONNX's own
inliner replaces nodes that no converter takes.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx.inliner
import onnx.shape_inference

from ...support.failures import error_text
from .honoured.check import UnsupportedModel, is_honoured
from .schema import domain_of, schema_of, versions_of

_MOST_ROUNDS = 8
"""Rounds of inlining. A body may contain nodes that are functions again."""


def inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with bodies in place of nodes that no converter takes, if their operator is a function."""
    if proto.functions:
        proto = onnx.inliner.inline_local_functions(proto)
    for _ in range(_MOST_ROUNDS):
        versions = versions_of(proto)
        chosen = {
            (node.domain, node.op_type)
            for node in all_nodes(proto.graph)
            if not is_honoured(domain_of(node), node.op_type)
            and _is_function(schema_of(domain_of(node), node.op_type, versions.get(domain_of(node), 1)))
        }
        if not chosen:
            return proto
        proto = _expanded(proto, sorted(chosen))
    return proto


def _expanded(proto: onnx.ModelProto, chosen: list[tuple[str, str]]) -> onnx.ModelProto:
    """Return the model with bodies of the chosen operators. Some bodies need the types of all values, and some none."""
    fault = ""
    for given in (proto, _typed(proto)):
        try:
            return onnx.inliner.inline_selected_functions(given, chosen, inline_schema_functions=True)
        except RuntimeError as error:  # the inliner's kind, for a body that it cannot build
            fault = error_text(error)
    names = ", ".join(sorted(op for _, op in chosen))
    raise UnsupportedModel(f"onnx's inliner cannot expand {names} ({fault}); export the model without")


def _typed(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a type for each value. Some bodies depend on types, and the inliner infers none."""
    try:
        typed = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except onnx.shape_inference.InferenceError:
        typed = onnx.ModelProto()
        typed.CopyFrom(proto)
    graph = typed.graph
    known = {value.name for value in (*graph.input, *graph.output, *graph.value_info)}
    graph.value_info.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in graph.initializer
        if tensor.name not in known
    )
    return typed


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the graphs in its nodes' attributes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs:
                yield from all_nodes(inner)


def _is_function(schema: onnx.defs.OpSchema | None) -> bool:
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)
