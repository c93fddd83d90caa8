# SPDX-License-Identifier: Apache-2.0
"""ONNX models that TVM's importer takes for others are told apart from those that it reads right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

import tvm_stitch
from tests.cli.helpers import run
from tvm_stitch.importers.onnx.misread import check_read, misread

X = np.random.default_rng(0).standard_normal((2, 3, 9, 10)).astype("float32")


def model(*nodes: Any, **constants: Any) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        list(nodes),
        "g",
        [info("x", TensorProto.FLOAT, X.shape)],
        [info("y", TensorProto.FLOAT, [2, 3, None, None])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def resized(*sizes: float, by_scales: bool = True, **how: Any) -> onnx.ModelProto:
    inputs = ["x", "", "s"] if by_scales else ["x", "", "", "s"]
    given = np.array([1, 1, *sizes], "float32") if by_scales else np.array([2, 3, *map(int, sizes)])
    return model(helper.make_node("Resize", inputs, ["y"], **how), s=given)


def computed(*factors: float) -> onnx.ModelProto:
    """Scales that are products of constants, which the importer multiplies."""
    half = helper.make_node("Constant", [], ["h"], value=numpy_helper.from_array(np.float32(0.5)))
    nodes = (
        half,
        helper.make_node("Mul", ["s", "h"], ["t"]),
        helper.make_node("Resize", ["x", "", "t"], ["y"]),
    )
    return model(*nodes, s=np.array([2, 2, *factors], "float32"))


def normed(result: str) -> onnx.ModelProto:
    outputs = [name if name == result else f"{name}_" for name in ("y", "mean", "deviation")]
    node = helper.make_node("LayerNormalization", ["x", "w"], outputs)
    if result == "y":
        return model(node, w=np.ones(10, "float32"))
    return model(node, helper.make_node("Neg", [result], ["y"]), w=np.ones(10, "float32"))


WRONG = {
    "scales of linear": resized(1.7, 0.55, mode="linear"),
    "scales of nearest": resized(1.7, 0.55, mode="nearest", coordinate_transformation_mode="asymmetric"),
    "antialias": resized(5, 4, by_scales=False, mode="linear", antialias=1),
    "computed scales": computed(2.6, 1.4),
    "the mean": normed("mean"),
    "the deviation": normed("deviation"),
}
RIGHT = {
    "whole scales": resized(2, 3, mode="linear"),
    "scales that give whole numbers": resized(2, 0.5, mode="linear"),
    "sizes": resized(5, 13, by_scales=False, mode="linear"),
    "scales between corners": resized(
        1.7, 0.55, mode="linear", coordinate_transformation_mode="align_corners"
    ),
    "computed whole scales": computed(4, 1),
    "the result": normed("y"),
}


def imported(proto: onnx.ModelProto) -> bool:
    """Whether what TVM imports computes what ONNX Runtime does."""
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": X})
    executable = tvm_stitch.compile(from_onnx(proto), "llvm")
    got = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(X)).numpy()
    return got.shape == wanted.shape and bool(np.allclose(got, wanted, rtol=1e-4, atol=1e-5))


@pytest.mark.parametrize("name", WRONG)
def test_what_the_importer_gets_wrong_is_told(name: str) -> None:
    told = misread(WRONG[name])
    assert told is not None and told.startswith("it gets ") and "of node " in told
    assert not imported(WRONG[name]), "TVM has learnt it: take it out"


@pytest.mark.parametrize("name", RIGHT)
def test_what_it_gets_right_is_not(name: str) -> None:
    assert misread(RIGHT[name]) is None
    assert imported(RIGHT[name])


def test_a_program_is_told_by_an_error() -> None:
    check_read(RIGHT["sizes"])
    with pytest.raises(
        ValueError, match=r"does not take this model: it gets the filter \(antialias\) of node 0"
    ):
        check_read(WRONG["antialias"])


def test_the_command_refuses_it_in_a_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(WRONG["antialias"], str(path))
    code, stdout, stderr = run(capfd, "explain", path, "-q")
    assert code == 1 and stdout == "", stderr
    (line,) = stderr.splitlines()
    assert "it gets the filter (antialias) of node 0 (Resize '') wrong" in line
