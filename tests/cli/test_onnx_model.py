# SPDX-License-Identifier: Apache-2.0
"""ONNX files as exporters write them: imported, or refused in one line that says what helps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.helpers import run


@pytest.fixture
def padded(tmp_path: Path) -> Path:
    """Padding that is gathered from a shape, which TVM's importer takes as a constant only, and a softmax."""
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["sizes"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["ten", "sizes"], ["difference"]),
        helper.make_node("Cast", ["difference"], ["missing"], to=TensorProto.INT64),
        helper.make_node("Concat", ["nothing", "missing"], ["pads"], axis=0),
        helper.make_node("Pad", ["x", "pads"], ["p"], name="pad"),
        helper.make_node("Softmax", ["p"], ["y"], axis=-1),
    ]
    constants = [
        numpy_helper.from_array(np.array(values), name)
        for values, name in ((np.float32([10, 10]), "ten"), ([0, 0], "nothing"))
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", TensorProto.FLOAT, [-1, 6])],
        [info("y", TensorProto.FLOAT, ["rows", "columns"])],
        constants,
    )
    path = tmp_path / "padded.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def test_with_fixed_shapes_it_is_imported(padded: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, stdout, stderr = run(capfd, "bench", padded, "--shape", "x=4,6", "--json", "--repeats", 1)
    assert code == 0 and json.loads(stdout)["stitched"]["max_abs_error"] < 1e-6
    assert "Error converting" not in stderr and "Warning" not in stderr


def test_with_open_shapes_one_line_says_what_helps(padded: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, stdout, stderr = run(capfd, "compile", padded, "-q")
    assert code == 1 and stdout == ""
    first, second = stderr.splitlines()
    assert first.endswith("with fixed shapes it may: --shape INPUT=1,128 for x: float32[x_dim0, 6]")
    assert f"TVM's ONNX importer does not take {padded}: Pad: " in first and second.endswith(
        "--debug shows where"
    )


def test_shapes_that_do_not_fit(padded: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for shape, message in (
        ("x=4,7", "does not fit the input x: float32[x_dim0, 6]"),
        ("z=1", "no input 'z'"),
    ):
        code, _, stderr = run(capfd, "compile", padded, "-q", "--shape", shape)
        assert code == 2 and message in stderr
