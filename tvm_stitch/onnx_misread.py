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

_BETWEEN_CORNERS = ("align_corners", "tf_crop_and_resize")
"""Of a Resize: how coordinates are found without its scales."""


def misread(proto: onnx.ModelProto) -> str | None:
    """The first node of a model that the importer gets wrong, and what of it; None where it finds none."""
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
        if node.op_type == "Resize" and (what := next(_of_resize(node, shapes, constants), None)):
            return f"it gets {what} of {where} wrong; export the model with sizes in their place"
    return None


def _of_resize(node: Any, shapes: dict[str, Any], constants: dict[str, Any]) -> Iterator[str]:
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    if attributes.get("antialias"):
        yield "the filter (antialias)"
    mode = attributes.get("coordinate_transformation_mode", b"half_pixel").decode()
    given = constants.get(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if given is None or mode in _BETWEEN_CORNERS:
        return
    scales = numpy_helper.to_array(given)
    extents = shapes.get(node.input[0]) or [None] * len(scales)
    if any(e is not None and not float(e * s).is_integer() for e, s in zip(extents, scales)):
        yield "the scales, which give no whole number of elements,"


def _shape(value: Any) -> list[int | None]:
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None for dim in dims]
