# SPDX-License-Identifier: Apache-2.0
"""Small ONNX files that stand for huge tensors, or for endless work, are refused at once."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.helpers import run
from tvm_stitch.importers.onnx.check import InvalidModel, check_model
from tvm_stitch.importers.onnx.limits import too_large_constant, within_limits
from tvm_stitch.importers.onnx.shapes import folded
from tvm_stitch.support import memory
from tvm_stitch.support.child_process import ChildFailed

HUGE = 1 << 33


def _model(
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    """Return a model that adds ``d`` of the nodes to its input."""
    dim = helper.make_tensor_value_info
    graph = helper.make_graph(
        [*nodes, helper.make_node("Add", ["x", "d"], ["y"])],
        "g",
        [dim("x", TensorProto.FLOAT, [1])],
        [dim("y", TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions or [])


def _ints(*values: int) -> np.ndarray:
    return np.array(values, "int64")


ONE = np.ones(1, "float32")
SQUARE = helper.make_node("Mul", ["c", "c"], ["d"])
BOMBS = {
    "Expand": _model([helper.make_node("Expand", ["k", "s"], ["c"]), SQUARE], {"k": ONE, "s": _ints(HUGE)}),
    "ConstantOfShape": _model(
        [helper.make_node("ConstantOfShape", ["s"], ["c"]), SQUARE], {"s": _ints(HUGE)}
    ),
    "Tile": _model([helper.make_node("Tile", ["k", "s"], ["c"]), SQUARE], {"k": ONE, "s": _ints(HUGE)}),
    "Pad": _model([helper.make_node("Pad", ["k", "s"], ["c"]), SQUARE], {"k": ONE, "s": _ints(0, HUGE)}),
    "Range": _model(
        [helper.make_node("Range", ["b", "e", "s"], ["c"]), SQUARE],
        {"b": np.float32(0), "e": np.float32(HUGE), "s": np.float32(1)},
    ),
    "Resize": _model(
        [helper.make_node("Resize", ["k", "", "", "s"], ["c"]), SQUARE], {"k": ONE, "s": _ints(HUGE)}
    ),
}


@pytest.mark.parametrize("operator", BOMBS)
def test_a_huge_constant_is_refused(operator: str) -> None:
    start = time.process_time()
    with pytest.raises(
        InvalidModel, match=rf"node 0 \({operator} ''\) makes a tensor of \d+ GiB from constants"
    ):
        check_model(BOMBS[operator])
    assert time.process_time() - start < 2  # the child's time is not this process's


def test_huge_work_without_constants_is_refused() -> None:
    nodes = [helper.make_node("Expand", ["x", "s"], ["c"]), SQUARE]
    with pytest.raises(InvalidModel, match="does not end well: it takes more than"):
        check_model(_model(nodes, {"s": _ints(HUGE)}))


def test_functions_that_call_each_other_twice_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm_stitch.importers.onnx import limits

    monkeypatch.setattr(limits, "SECONDS", 2)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    inner = "Neg"
    functions = []
    for i in range(40):
        domain = "own" if functions else ""
        body = [helper.make_node(inner, [a], [b], domain=domain) for a, b in (("a", "b"), ("b", "c"))]
        functions.append(helper.make_function("own", f"F{i}", ["a"], ["c"], body, opsets))
        inner = f"F{i}"
    model = _model([helper.make_node(inner, ["x"], ["d"], domain="own")], {}, functions)
    with pytest.raises(InvalidModel, match="does not end well: it takes more than"):
        check_model(model)


def test_constants_in_proportion_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model([helper.make_node("Expand", ["k", "s"], ["c"]), SQUARE], {"k": ONE, "s": _ints(1 << 20)})
    check_model(model)
    inferred = onnx.shape_inference.infer_shapes(model)
    assert too_large_constant(inferred) is None
    monkeypatch.setattr(memory, "SMALL", 1 << 20)
    reason = too_large_constant(inferred)
    assert reason is not None and "set TVM_STITCH_MODEL_BYTES" in reason
    monkeypatch.setenv("TVM_STITCH_MODEL_BYTES", "1G")
    assert too_large_constant(inferred) is None


def test_the_command_line_refuses(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    onnx.save(BOMBS["Expand"], tmp_path / "bomb.onnx")
    code, _, stderr = run(capfd, "compile", tmp_path / "bomb.onnx", "-o", tmp_path / "out")
    assert (
        code == 2 and "makes a tensor of 32 GiB from constants" in stderr and not (tmp_path / "out").exists()
    )


def test_a_step_within_limits_returns_its_result() -> None:
    model = BOMBS["Tile"]
    assert within_limits(lambda: model.graph.name, model) == "g"
    with pytest.raises(ChildFailed, match="GiB of memory"):
        within_limits(lambda: str(len(bytes(1 << 33))), model)


def test_folding_has_limits() -> None:
    nodes = [
        helper.make_node("Exp", ["k"], ["e"]),
        helper.make_node("Mul", ["e", "f"], ["g"]),
        helper.make_node("Cast", ["g"], ["s"], to=TensorProto.INT64),
        helper.make_node("Expand", ["k", "s"], ["c"]),  # of a size that no inference knows
        SQUARE,
    ]
    pytest.importorskip("onnxruntime")
    small = folded(_model(nodes, {"k": ONE, "f": np.full(1, 4, "float32")}), {})
    assert small is not None and len(small.graph.node) == 1
    large = folded(_model(nodes, {"k": ONE, "f": np.full(1, 1.1e8, "float32")}), {})  # 1.2 GB
    assert large is None or large.ByteSize() < 1 << 20
