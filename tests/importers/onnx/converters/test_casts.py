# SPDX-License-Identifier: Apache-2.0
"""Casts compute what ONNX Runtime does, and types that TVM does not compute with are refused."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.importers.onnx.runs import compare, floats, model
from tvm_stitch.importers.onnx.honoured.check import UnsupportedModel
from tvm_stitch.importers.onnx.load import from_onnx


@pytest.mark.parametrize("to", ["BOOL", "INT8", "UINT8", "INT32", "INT64", "FLOAT16", "DOUBLE", "FLOAT"])
def test_casts_of_floats(to: str) -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.DataType.Value(to))
    compare(node, {"x": np.array([0, -0.0, 1.7, 2.5, 100.2, 0.3], "float32")})


@pytest.mark.parametrize("to", ["FLOAT", "FLOAT16", "INT32"])
def test_casts_of_booleans(to: str) -> None:
    compare(
        helper.make_node("Cast", ["x"], ["y"], to=TensorProto.DataType.Value(to)),
        {"x": np.array([True, False])},
    )


def test_eight_bit_floats_are_refused() -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E4M3FN)
    with pytest.raises(UnsupportedModel, match="casts float32 to float8_e4m3fn"):
        from_onnx(model(node, {"x": floats(3)}))
