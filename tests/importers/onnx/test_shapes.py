# SPDX-License-Identifier: Apache-2.0
"""Shapes that exporters write in ways that TVM's importer does not take."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvm_stitch.importers.onnx.check import InvalidModel, check_model
from tvm_stitch.importers.onnx.compare import input_specs, load_onnx, onnxruntime_call
from tvm_stitch.importers.onnx.shapes import folded, with_symbolic_dims


def flattened(dims: list[int | str]) -> onnx.ModelProto:
    """Flatten all but the first axis, as some exporters write it: the shape is gathered from that of a sum."""
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Add", ["x", "x"], ["s"]),
        helper.make_node("Shape", ["s"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["rows"], axis=0),
        helper.make_node("Concat", ["rows", "rest"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["s", "wanted"], ["y"], name="flat"),
    ]
    constants = [numpy_helper.from_array(np.array([n]), name) for n, name in ((0, "first"), (-1, "rest"))]
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", TensorProto.FLOAT, dims)],
        [info("y", TensorProto.FLOAT, ["rows", "columns"])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_dimensions_of_minus_one_are_symbolic() -> None:
    proto = flattened([-1, 3, -1])
    proto.graph.value_info.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, [-1, 3, 4]))
    with pytest.raises(InvalidModel, match="negative dimension"):
        check_model(proto)
    made = with_symbolic_dims(proto)
    check_model(made)
    (spec,) = input_specs(made)
    assert spec.shape == ("x_dim0", 3, "x_dim2")
    first, *rest = made.graph.value_info[0].type.tensor_type.shape.dim
    assert not first.HasField("dim_value") and [d.dim_value for d in rest] == [3, 4]
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value == -1, "the model is left as it was"


def test_names_that_are_taken_stay_apart() -> None:
    (spec,) = input_specs(with_symbolic_dims(flattened([-1, "x_dim0", -1])))
    assert spec.shape == ("x_dim0_2", "x_dim0", "x_dim2")


def test_other_models_are_the_same_object() -> None:
    proto = flattened(["n", 3, 4])
    assert with_symbolic_dims(proto) is proto


def test_other_negative_dimensions_are_wrong() -> None:
    with pytest.raises(InvalidModel, match="negative dimension"):
        check_model(with_symbolic_dims(flattened([-2, 3, 4])))


def test_shapes_that_are_fixed_are_computed() -> None:
    proto = flattened(["n", 3, 4])
    made = folded(proto, {"x": (2, 3, 4)})
    assert made is not None and "Shape" not in {node.op_type for node in made.graph.node}
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
    expected = onnxruntime_call(proto, {"x": x})()[0]
    np.testing.assert_array_equal(onnxruntime_call(made, {"x": x})()[0], expected)
    model = load_onnx(made)
    assert [int(d) for d in model.mod["main"].ret_ty.shape.values] == [2, 12]
    assert "Shape" in {node.op_type for node in proto.graph.node}, "the model is left as it was"


def test_open_shapes_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert folded(flattened(["n", 3, 4]), {}) is None
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert folded(flattened([2, 3, 4]), {}) is None, "without ONNX Runtime"


def test_what_onnx_runtime_refuses_is_not() -> None:
    proto = flattened([2, 3, 4])
    proto.graph.node[0].op_type = "Unheard"
    assert folded(proto, {}) is None
