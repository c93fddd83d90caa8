# SPDX-License-Identifier: Apache-2.0
"""Functions of ONNX and of the model itself are replaced by their bodies where no converter exists."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper

from tests.importers.onnx.runs import compare, computed, floats, model
from tvm_stitch.importers.onnx.functions import all_nodes, inlined
from tvm_stitch.importers.onnx.honoured.check import UnsupportedModel


def test_functions_of_onnx() -> None:
    node = helper.make_node("SoftmaxCrossEntropyLoss", ["x", "t"], ["y"])
    inputs = {"x": floats(3, 5), "t": floats(3).astype("int64") % 5}
    proto = inlined(model(node, inputs))
    assert "SoftmaxCrossEntropyLoss" not in {each.op_type for each in all_nodes(proto.graph)}
    compare(node, inputs)


def test_functions_of_the_model() -> None:
    body = [helper.make_node("Exp", ["a"], ["b"]), helper.make_node("Neg", ["b"], ["c"])]
    opsets = [helper.make_opsetid("", 21)]
    proto = model(helper.make_node("Own", ["x"], ["y"], domain="own"), {"x": floats(4)})
    proto.functions.append(helper.make_function("own", "Own", ["a"], ["c"], body, opsets))
    proto.opset_import.append(helper.make_opsetid("own", 1))
    assert [node.op_type for node in inlined(proto).graph.node] == ["Exp", "Neg"]
    (result,) = computed(proto, {"x": floats(4) * 0})
    assert result.tolist() == [-1.0] * 4


def test_a_function_that_the_inliner_cannot_expand_is_refused() -> None:
    """Leave out an optional input whose type the inliner asks for."""
    node = helper.make_node("CausalConvWithState", ["x", "w", "", "s"], ["y", "z"])
    inputs = {"x": floats(1, 2, 4), "w": floats(2, 1, 3), "s": floats(1, 2, 2)}
    proto = model(node, inputs, opset=onnx.defs.onnx_opset_version())
    with pytest.raises(UnsupportedModel, match="inliner cannot expand CausalConvWithState"):
        inlined(proto)
