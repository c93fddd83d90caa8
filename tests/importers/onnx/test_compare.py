# SPDX-License-Identifier: Apache-2.0
"""Importing ONNX models, making inputs, measuring errors and times."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax
from tvm.target import Target

from tvm_stitch.execution.runner import Runner
from tvm_stitch.execution.tensors import TensorSpec, make_inputs
from tvm_stitch.importers.onnx.compare import (
    greatest_error,
    input_specs,
    load_onnx,
    onnxruntime_call,
    output_specs,
)

CPU = Target("llvm")


@pytest.fixture
def model() -> onnx.ModelProto:
    """y = exp(x) + bias, s = the sum of y's rows, and x is (batch, 4)."""
    bias = helper.make_tensor("bias", TensorProto.FLOAT, [4], [0.5, -1.0, 2.0, 0.0])
    graph = helper.make_graph(
        [
            helper.make_node("Exp", ["x.1"], ["e"]),
            helper.make_node("Add", ["e", "bias"], ["y"]),
            helper.make_node("Softmax", ["y"], ["s"]),
        ],
        "exp_add",
        [
            helper.make_tensor_value_info("x.1", TensorProto.FLOAT, ["batch", 4]),
            helper.make_tensor_value_info("bias", TensorProto.FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4]),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, ["batch", 4]),
        ],
        [bias],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_inputs_are_what_no_initializer_fills(model: onnx.ModelProto) -> None:
    assert input_specs(model) == (TensorSpec("x.1", ("batch", 4), "float32"),)
    assert str(input_specs(model)[0]) == "x.1: float32[batch, 4]"


def test_loaded_model_runs_like_onnxruntime(model: onnx.ModelProto) -> None:
    loaded = load_onnx(model, {"x.1": [3, 4]})
    assert loaded.inputs == (TensorSpec("x.1", (3, 4), "float32"),)
    inputs = make_inputs(loaded.inputs, seed=5)
    executable = tvm.compile(loaded.mod, CPU, relax_pipeline=relax.get_default_pipeline(CPU))
    runner = Runner(executable, CPU, list(inputs.values()))
    expected = onnxruntime_call(model, inputs)()
    assert len(expected) == 2
    assert greatest_error(runner.outputs(), expected) < 1e-5
    np.testing.assert_allclose(expected[0], np.exp(inputs["x.1"]) + [0.5, -1.0, 2.0, 0.0], rtol=1e-5)


def test_outputs_have_the_shapes_that_are_inferred(model: onnx.ModelProto) -> None:
    assert output_specs(load_onnx(model, {"x.1": [3, 4]})) == (
        TensorSpec("y", (3, 4), "float32"),
        TensorSpec("s", (3, 4), "float32"),
    )
    assert output_specs(load_onnx(model))[0] == TensorSpec("y", ("batch", 4), "float32")
    del model.graph.output[1]
    assert output_specs(load_onnx(model)) == (TensorSpec("y", ("batch", 4), "float32"),)


def test_outputs_of_unknown_size_and_sequences() -> None:
    tensor = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    several = helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, [4])
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["q"]),
        helper.make_node("NonZero", ["x"], ["z"]),
    ]
    indices = helper.make_tensor_value_info("z", TensorProto.INT64, [1, "count"])
    graph = helper.make_graph(nodes, "g", [tensor], [several, indices])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    sequence, dynamic = output_specs(load_onnx(proto))
    assert sequence == TensorSpec("q", ("?",), "sequence")
    assert (dynamic.name, len(dynamic.shape), dynamic.dtype) == ("z", 2, "int64")
    assert not isinstance(dynamic.shape[1], int)


def test_symbolic_dimensions_stay_symbolic(model: onnx.ModelProto) -> None:
    loaded = load_onnx(model)
    executable = tvm.compile(loaded.mod, CPU, relax_pipeline=relax.get_default_pipeline(CPU))
    for batch in (1, 5):
        inputs = make_inputs([TensorSpec("x.1", (batch, 4), "float32")])
        outputs = Runner(executable, CPU, list(inputs.values())).outputs()
        assert greatest_error(outputs, onnxruntime_call(model, inputs)()) < 1e-5


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"y": [3, 4]}, "no input 'y'; its inputs are x.1: float32"),
        ({"x.1": [3, 5]}, r"shape \[3, 5\] does not fit the input x.1: float32\[batch, 4\]"),
        ({"x.1": [4]}, r"shape \[4\] does not fit"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    model: onnx.ModelProto, shapes: dict[str, list[int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load_onnx(model, shapes)


def test_greatest_error() -> None:
    a = np.array([1.0, np.nan, np.inf], np.float32)
    assert greatest_error([a], [a]) == 0.0
    assert greatest_error([a + np.array([0.25, 0, 0], np.float32)], [a]) == 0.25
    assert greatest_error([np.array([1.0, 2.0, np.inf], np.float32)], [a]) == np.inf
    assert greatest_error([np.array([1.0, np.nan, -np.inf], np.float32)], [a]) == np.inf
    assert greatest_error([a[:2]], [a]) == np.inf
    assert greatest_error([a], [a, a]) == np.inf
    assert greatest_error([np.zeros(0)], [np.zeros(0)]) == 0.0
