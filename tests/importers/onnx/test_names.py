# SPDX-License-Identifier: Apache-2.0
"""Nodes keep their names, and the module is the importer's own."""

from __future__ import annotations

import onnx
import tvm
from onnx import TensorProto, helper
from tvm import relax

from tvm_stitch.importers.onnx.load import from_onnx
from tvm_stitch.importers.onnx.names import from_onnx_named
from tvm_stitch.testing.workloads.bert import BertConfig, build_bert

SMALL = BertConfig(layers=1, hidden=32, heads=2, sequence=8, ffn=64, vocabulary=32)


def names(mod: tvm.IRModule) -> dict[str, str]:
    found = {}
    for binding in mod["main"].body.blocks[0].bindings:
        if isinstance(binding.value, relax.Call) and binding.value.span is not None:
            found[binding.value.span.source_name.name] = binding.value.op.name
    return found


def test_the_names_of_a_model() -> None:
    found = names(from_onnx_named(build_bert(SMALL)))
    assert found["layer0.attention.softmax"] == "relax.nn.softmax"
    assert found["layer0.attention.norm.out"] == "relax.nn.layer_norm", "bound by the importer itself"
    assert found["layer0.ffn.gelu.erf"] == "relax.erf"


def test_the_module_is_the_same() -> None:
    proto = build_bert(SMALL)
    before = proto.SerializeToString()
    tvm.ir.assert_structural_equal(from_onnx_named(proto), from_onnx(proto))
    assert proto.SerializeToString() == before


def test_nodes_without_names_go_by_their_result() -> None:
    graph = helper.make_graph(
        [helper.make_node("Exp", ["x"], ["grown"]), helper.make_node("Neg", ["grown"], ["y"], name="turn")],
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto)
    assert names(from_onnx_named(proto)) == {"grown": "relax.exp", "turn": "relax.negative"}


def test_shapes_are_fixed() -> None:
    graph = helper.make_graph(
        [helper.make_node("Exp", ["x"], ["y"])],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    mod = from_onnx_named(proto, {"x": [5]})
    assert [int(d) for d in mod["main"].params[0].ty.shape] == [5]
