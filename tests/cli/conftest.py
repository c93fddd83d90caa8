# SPDX-License-Identifier: Apache-2.0
"""A model for the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A softmax by primitives between two matmuls. x is (batch, 16)."""
    rng = np.random.default_rng(0)
    weights = [
        helper.make_tensor(
            name, TensorProto.FLOAT, shape, rng.standard_normal(shape).astype("float32").ravel()
        )
        for name, shape in (("w1", (16, 24)), ("w2", (24, 8)))
    ]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [-1])
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"]),
            helper.make_node("ReduceMax", ["h"], ["top"], axes=[-1], keepdims=1),
            helper.make_node("Sub", ["h", "top"], ["low"]),
            helper.make_node("Exp", ["low"], ["e"]),
            helper.make_node("ReduceSum", ["e", "axes"], ["total"], keepdims=1),
            helper.make_node("Div", ["e", "total"], ["p"]),
            helper.make_node("MatMul", ["p", "w2"], ["y"]),
        ],
        "head",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        [*weights, axes],
    )
    path = tmp_path_factory.mktemp("models") / "head.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path
