# SPDX-License-Identifier: Apache-2.0
"""Models that come as ONNX files: the encoder of ``make run``, and a network of images of ONNX's own norms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tvm_stitch.importers.onnx.load import from_onnx
from tvm_stitch.testing.workloads.bert import BertConfig, build_bert, random_inputs

from .spec import Arrays, Made, normal


def _wide(model: onnx.ModelProto) -> onnx.ModelProto:
    """Compute the same model in float64."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for value in [*wide.graph.input, *wide.graph.output, *wide.graph.value_info]:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in wide.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(array.astype("float64"), tensor.name))
    for node in wide.graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
            elif attribute.name == "value" and attribute.t.data_type == TensorProto.FLOAT:
                array = numpy_helper.to_array(attribute.t).astype("float64")
                attribute.t.CopyFrom(numpy_helper.from_array(array))
    return wide


def _made(model: onnx.ModelProto, inputs: Arrays) -> Made:
    def reference(arrays: Sequence[np.ndarray]) -> Arrays:
        names = [value.name for value in model.graph.input]
        wide = [x.astype("float64") if x.dtype == np.float32 else x for x in arrays]
        return list(ReferenceEvaluator(_wide(model)).run(None, dict(zip(names, wide))))

    return Made(from_onnx(model), lambda: inputs, reference)


def onnx_bert() -> Made:
    config = BertConfig(layers=1, hidden=32, heads=4, sequence=12, ffn=64, vocabulary=50, batch=2)
    model = build_bert(config)
    named = random_inputs(config)
    return _made(model, [named[value.name] for value in model.graph.input])


def onnx_image_network() -> Made:
    """Convolutions, group and instance norms, hard swish, a softmax over classes and its greatest."""
    weights = {
        "w1": normal(8, 3, 3, 3) / 5,
        "b1": normal(8),
        "g1": normal(8, seed=1),
        "o1": normal(8, seed=2),
        "w2": normal(8, 8, 3, 3) / 8,
        "g2": normal(8, seed=3),
        "o2": normal(8, seed=4),
        "w3": normal(8, 10),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        node("GroupNormalization", ["c1", "g1", "o1"], ["n1"], num_groups=4, epsilon=1e-5),
        node("HardSwish", ["n1"], ["a1"]),
        node("Conv", ["a1", "w2"], ["c2"], pads=[1, 1, 1, 1]),
        node("InstanceNormalization", ["c2", "g2", "o2"], ["n2"], epsilon=1e-5),
        node("Relu", ["n2"], ["a2"]),
        node("GlobalAveragePool", ["a2"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("MatMul", ["f", "w3"], ["scores"]),
        node("Softmax", ["scores"], ["shares"], axis=-1),
        node("ArgMax", ["shares"], ["best"], axis=-1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "images",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 8, 8])],
        [
            helper.make_tensor_value_info("shares", TensorProto.FLOAT, [2, 10]),
            helper.make_tensor_value_info("best", TensorProto.INT64, [2]),
        ],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return _made(model, [normal(2, 3, 8, 8)])
