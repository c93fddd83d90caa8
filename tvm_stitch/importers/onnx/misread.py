# SPDX-License-Identifier: Apache-2.0
"""ONNX models that TVM's importer silently misreads.

The importer turns the scales of a Resize into sizes, and then uses the ratio of sizes. For example, 9 pixels at 1.7
are 15, and the importer's step is 9 / 15 instead of ONNX's 1 / 1.7. It ignores the filter of ``antialias``. It also
returns wrong values for the mean and the deviation of a LayerNormalization.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from ...support.failures import reraise_fatal

_BETWEEN_CORNERS = ("align_corners", "tf_crop_and_resize")
"""Coordinate modes of a Resize that do not use its scales."""


def misread(proto: onnx.ModelProto) -> str | None:
    """Return the first node of a model that the importer misreads, and the affected part, or None."""
    inferred = onnx.shape_inference.infer_shapes(proto)
    graph = inferred.graph
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    shapes = {value.name: _shape(value) for value in (*graph.input, *graph.value_info)}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                constants[node.output[0]] = attribute.t
    for number, node in enumerate(graph.node):
        where = f"node {number} ({node.op_type} {node.name!r})"
        if node.op_type == "LayerNormalization" and any(name in read for name in node.output[1:] if name):
            return f"it gets the mean and the deviation of {where} wrong; export the model without"
        if node.op_type != "Resize":
            continue
        if part := next(_of_resize(node, shapes, _scales(node, proto, constants)), None):
            return f"it gets {part} of {where} wrong; export the model with sizes in their place"
    return None


def check_read(proto: onnx.ModelProto) -> None:
    """Check that the importer does not misread a model.

    Args:
        proto: the model that ``tvm.relax.frontend.onnx.from_onnx`` will get.

    Raises:
        ValueError: if it does. The message has the first such node, and advice.
    """
    if (reason := misread(proto)) is not None:
        raise ValueError(f"TVM's ONNX importer does not take this model: {reason}")


def _of_resize(node: Any, shapes: dict[str, Any], scales: Any) -> Iterator[str]:
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    if attributes.get("antialias"):
        yield "the filter (antialias)"
    mode = attributes.get("coordinate_transformation_mode", b"half_pixel").decode()
    if scales is None or mode in _BETWEEN_CORNERS:
        return
    extents = shapes.get(node.input[0]) or [None] * len(scales)
    if any(e is not None and not float(e * s).is_integer() for e, s in zip(extents, scales)):
        yield "the scales, which give no whole number of elements,"


def _scales(node: Any, proto: onnx.ModelProto, constants: dict[str, Any]) -> Any:
    """Return the scales of a Resize if they are constants or computed from constants only, as the importer does."""
    name = node.input[2] if len(node.input) > 2 else ""
    if not name or name in constants:
        return numpy_helper.to_array(constants[name]) if name else None
    needed, nodes = {name}, list[onnx.NodeProto]()
    for each in reversed(proto.graph.node):
        if needed.intersection(each.output):
            nodes.insert(0, each)
            needed |= set(filter(None, each.input))
    computed = {result for each in nodes for result in each.output}
    given = [constants[each] for each in sorted(needed - computed) if each in constants]
    if name not in computed or len(given) < len(needed - computed):
        return None
    result = onnx.ValueInfoProto(name=name)
    graph = onnx.helper.make_graph(nodes, "scales", [], [result], given)
    alone = onnx.helper.make_model(graph, opset_imports=proto.opset_import, functions=proto.functions)
    try:
        return ReferenceEvaluator(alone).run(None, {})[0]
    except Exception as error:  # an operator that the evaluator does not know
        reraise_fatal(error)
        return None


def _shape(value: Any) -> list[int | None]:
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None for dim in dims]
