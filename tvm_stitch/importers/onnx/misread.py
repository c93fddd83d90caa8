# SPDX-License-Identifier: Apache-2.0
"""What TVM's ONNX importer takes for something else, and says nothing about.

It makes sizes of the scales of a Resize, and goes by their ratio from then on: 9 pixels at 1.7 are 15, and a step is
9 / 15 where ONNX takes 1 / 1.7. It leaves out the filter of ``antialias``, and gives other values in the place of the
mean and the deviation that a LayerNormalization returns beside its result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from ...support.failures import reraise_fatal

_BETWEEN_CORNERS = ("align_corners", "tf_crop_and_resize")
"""Of a Resize: how coordinates are found without its scales."""


def misread(proto: onnx.ModelProto) -> str | None:
    """Return the first node of a model that the importer gets wrong, and what of it; None where it finds none."""
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
        if what := next(_of_resize(node, shapes, _scales(node, proto, constants)), None):
            return f"it gets {what} of {where} wrong; export the model with sizes in their place"
    return None


def check_read(proto: onnx.ModelProto) -> None:
    """See whether the importer takes a model for another one.

    Args:
        proto: the model, as ``tvm.relax.frontend.onnx.from_onnx`` would be given it.

    Raises:
        ValueError: where it does; the message has the first node, and what to do about it.
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
    """Return those of a Resize, where they are constants or computed from constants alone, as the importer does."""
    name = node.input[2] if len(node.input) > 2 else ""
    if not name or name in constants:
        return numpy_helper.to_array(constants[name]) if name else None
    needed, nodes = {name}, list[onnx.NodeProto]()
    for each in reversed(proto.graph.node):
        if needed.intersection(each.output):
            nodes.insert(0, each)
            needed |= set(filter(None, each.input))
    made = {result for each in nodes for result in each.output}
    given = [constants[each] for each in sorted(needed - made) if each in constants]
    if name not in made or len(given) < len(needed - made):
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
