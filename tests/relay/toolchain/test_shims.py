# SPDX-License-Identifier: Apache-2.0
"""``relay.frontend.from_onnx`` with an onnx that has no ``onnx.mapping``."""

from __future__ import annotations

import importlib

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relay
from tvm.contrib.graph_executor import GraphModule

from tvm_relay_toolchain import shims

NUMBERS = "FLOAT16 FLOAT DOUBLE INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 BOOL".split()


def test_the_table_has_numpys_dtypes() -> None:
    mapping = importlib.import_module("onnx.mapping")
    for name in NUMBERS:
        element_type = TensorProto.DataType.Value(name)
        dtype = {"FLOAT": "float32", "DOUBLE": "float64"}.get(name, name.lower())
        assert mapping.TENSOR_TYPE_TO_NP_TYPE[element_type] == np.dtype(dtype)
        assert mapping.NP_TYPE_TO_TENSOR_TYPE[np.dtype(dtype)] == element_type
    assert TensorProto.UNDEFINED not in mapping.TENSOR_TYPE_TO_NP_TYPE


def test_only_that_name_is_answered() -> None:
    finder = shims.OnnxMappingFinder()
    assert finder.find_spec("onnx.mapping") is not None
    assert finder.find_spec("onnx.other") is None and finder.find_spec("tvm") is None


@pytest.mark.parametrize("source", ["FLOAT", "INT32", "UINT8"])
@pytest.mark.parametrize("destination", ["FLOAT16", "FLOAT", "DOUBLE", "INT8", "INT64", "BOOL"])
def test_casts_import_and_agree_with_onnx_runtime(source: str, destination: str) -> None:
    to = TensorProto.DataType.Value(destination)
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=to)],
        "cast",
        [helper.make_tensor_value_info("x", TensorProto.DataType.Value(source), [5])],
        [helper.make_tensor_value_info("y", to, [5])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.checker.check_model(model)
    mod, params = relay.frontend.from_onnx(model)
    executor = GraphModule(relay.build(mod, "llvm", params=params)["default"](tvm.cpu()))
    x = np.array([0, 1, 2, 100, 7]).astype({"FLOAT": "float32"}.get(source, source.lower()))
    executor.run(x=x)
    y = executor.get_output(0).numpy()
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert y.dtype == expected.dtype
    np.testing.assert_array_equal(y, expected)
