# SPDX-License-Identifier: Apache-2.0
"""Models with symbolic dimensions are imported whole, and errors name node and reason without internals."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax

import tvm_stitch
from tests.importers.onnx.runs import MICROSOFT, expected, floats, model
from tvm_stitch.importers.onnx.honoured.check import UnsupportedModel
from tvm_stitch.importers.onnx.load import from_onnx


def test_a_block_of_a_transformer_with_symbols() -> None:
    """Run one compiled module on two sizes."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Slice", ["shape", "zero", "two"], ["rows"]),
        node("Concat", ["rows", "heads"], ["split"], axis=0),
        node("LayerNormalization", ["x", "g", "b"], ["n"]),
        node("Reshape", ["n", "split"], ["h"]),
        node("Transpose", ["h"], ["t"], perm=[0, 2, 1, 3]),
        node("Einsum", ["t", "t"], ["scores"], equation="bhqd,bhkd->bhqk"),
        node("Softmax", ["scores"], ["p"]),
        node("MatMul", ["p", "t"], ["a"]),
        node("Transpose", ["a"], ["u"], perm=[0, 2, 1, 3]),
        node("Reshape", ["u", "shape"], ["m"]),
        node("SkipLayerNormalization", ["m", "x", "g", "b"], ["s"], domain=MICROSOFT),
        node("Gather", ["s", "last"], ["y"], axis=1),
    ]
    constants = {
        "zero": np.array([0]), "two": np.array([2]), "heads": np.array([2, 4]), "last": np.array([-1]),
        "g": floats(8), "b": floats(8),
    }  # fmt: skip
    proto = model(nodes, {"x": floats(1, 1, 8)}, constants, dims={"x": ["batch-size", "past_len + 1", 8]})
    machine = relax.VirtualMachine(tvm_stitch.compile(from_onnx(proto), "llvm"), tvm.cpu())
    for shape in ((2, 5, 8), (3, 1, 8)):
        x = floats(*shape)
        got = machine["main"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(got, expected(proto, {"x": x})[0], 1e-4, 1e-5)


def test_a_lacking_attribute_is_named() -> None:
    with pytest.raises(UnsupportedModel, match="node 0 .LRN '' .*it lacks the attribute size"):
        from_onnx(model(helper.make_node("LRN", ["x"], ["y"]), {"x": floats(1, 2, 3, 3)}))


def test_errors_have_no_internals(capfd: pytest.CaptureFixture[str]) -> None:
    proto = model(helper.make_node("Pad", ["x", "p"], ["y"]), {"x": floats(2, 2), "p": np.zeros(4, "int64")})
    with pytest.raises(UnsupportedModel) as caught:
        from_onnx(proto)
    assert str(caught.value) == (
        "node 0 (Pad '' of domain ai.onnx, opset 21): its input 1 (pads) is only known at run time; "
        "make it an initializer"
    )
    del caught
    assert "BlockBuilder" not in capfd.readouterr().err


def test_inputs_that_tvm_has_no_tensors_for() -> None:
    proto = model(helper.make_node("Identity", ["x"], ["y"]), {"x": floats(2)})
    proto.graph.input[0].type.tensor_type.elem_type = 22  # INT4
    with pytest.raises(UnsupportedModel, match="the input 'x' is of int4"):
        from_onnx(proto)
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    proto.graph.input[0].type.tensor_type.elem_type = 1
    with pytest.raises(UnsupportedModel, match="the input 'x' has no shape; give one"):
        from_onnx(proto)
    assert [int(d) for d in from_onnx(proto, {"x": [3]})["main"].params[0].ty.shape] == [3]
