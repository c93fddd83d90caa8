# SPDX-License-Identifier: Apache-2.0
"""An ONNX model is checked before TVM's importer sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from scripts.corrupt_onnx import valid_models
from tvm_stitch.importers.onnx.check import InvalidModel, check_model


def concat() -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Concat", ["x", "w"], ["c"], axis=0),
            helper.make_node("Clip", ["c", "", "top"], ["y"], name="clip"),
        ],
        "g",
        [value("x", TensorProto.FLOAT, [2, 3])],
        [value("y", TensorProto.FLOAT, [4, 3])],
        [
            numpy_helper.from_array(np.ones((2, 3), "float32"), "w"),
            numpy_helper.from_array(np.float32(1), "top"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("number", range(len(valid_models())))
def test_valid_models_pass(number: int) -> None:
    check_model(valid_models()[number])


def test_an_opset_newer_than_the_checkers() -> None:
    model = concat()
    model.opset_import[0].version = 999
    with pytest.raises(InvalidModel, match="of opset 999, and the installed onnx package knows"):
        check_model(model)


def test_optional_inputs_may_be_left_out() -> None:
    check_model(concat())


def _rename(place: int, name: str) -> Callable[[Any], None]:
    def change(graph: Any) -> None:
        graph.node[0].input[place] = name

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_rename(0, ""), r"input 0 \(inputs\) of node 0 \(Concat ''\) has no name, and is not optional"),
        (_rename(1, ""), "input 1 .* has no name"),
        (_rename(1, "nowhere"), "nowhere"),
        (lambda g: g.node[1].input.__setitem__(0, ""), "clip.*input 0"),
        (lambda g: g.node[0].input.__delitem__(slice(None)), "Concat"),
        (lambda g: g.output[0].__setattr__("name", "other"), "other"),
        (lambda g: g.input[0].type.tensor_type.shape.dim[0].__setattr__("dim_value", -2), "negative"),
        (lambda g: g.input[0].type.tensor_type.shape.dim[0].__setattr__("dim_value", 1 << 62), "elements|dimension"),
        (lambda g: g.initializer[0].__setattr__("raw_data", b"1234"), "'?w'?"),
        (lambda g: g.output[0].type.tensor_type.shape.dim[0].__setattr__("dim_value", 7), "shapes or types"),
        (lambda g: g.output[0].type.tensor_type.__setattr__("elem_type", 7), "type"),
        (lambda g: g.node[0].attribute[0].__setattr__("i", 9), "axis"),
        (lambda g: g.output.append(g.output[0]), "two outputs have the name 'y'"),
    ],
)  # fmt: skip
def test_what_the_importer_would_take_for_granted(change: Callable[[Any], None], message: str) -> None:
    model = concat()
    change(model.graph)
    with pytest.raises(InvalidModel, match=message):
        check_model(model)
