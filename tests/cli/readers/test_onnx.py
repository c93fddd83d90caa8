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
    (line,) = stderr.splitlines()
    assert line.endswith("with fixed shapes it may: --shape x=N,6, each N a number")
    assert f"{padded} cannot be imported: node " in line and "(Pad '" in line


def test_shapes_that_do_not_fit(padded: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for shape, message in (
        ("x=4,7", "does not fit the input x: float32[x_dim0, 6]"),
        ("z=1", "no input 'z'"),
    ):
        code, _, stderr = run(capfd, "compile", padded, "-q", "--shape", shape)
        assert code == 2 and message in stderr


def saved(path: Path, nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], output: str) -> Path:
    """Return a model of one float result."""
    sizes = {"y": [1, 1, 2], "d": [1], "z": [2]}[output]
    graph = helper.make_graph(
        nodes, "g", inputs, [helper.make_tensor_value_info(output, TensorProto.FLOAT, sizes)]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    return path


def test_an_operator_that_the_importer_does_not_know(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line names it and says what to do. The line does not ask for shapes, which would not help."""
    info = helper.make_tensor_value_info
    det = helper.make_node("Det", ["x"], ["d"], name="volume")
    one = saved(tmp_path / "one.onnx", [det], [info("x", TensorProto.FLOAT, ["t", 2, 2])], "d")
    code, _, stderr = run(capfd, "compile", one, "-q")
    (first,) = stderr.splitlines()
    assert code == 1 and "node 0 (Det 'volume' of domain ai.onnx, opset 17): no converter knows this" in first
    assert "--shape" not in first and ".pt2" not in first, "torch.export would need the same operator"


def test_names_that_are_no_identifiers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """No message says that TVM's importer renames them."""
    name = "in put\nfile:0=../x"
    x = helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])
    path = saved(tmp_path / "m.onnx", [helper.make_node("Softmax", [name], ["z"])], [x], "z")
    code, stdout, stderr = run(capfd, "compile", path, "-q", "-o", tmp_path / "out", "--json")
    assert code == 0 and stderr == "" and json.loads(stdout)["inputs"][0]["name"] == name


def test_inputs_that_are_no_tensors_of_numbers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    strings = helper.make_tensor_value_info("words", TensorProto.STRING, [2])
    sequence = helper.make_tensor_sequence_value_info("many", TensorProto.FLOAT, [2])
    of_strings = helper.make_node(
        "LabelEncoder", ["words"], ["z"], domain="ai.onnx.ml", keys_strings=["a"], values_floats=[1.0]
    )
    of_sequence = helper.make_node("SequenceAt", ["many", "i"], ["z"])
    place = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    for node, inputs, told in (
        (of_strings, [strings], "input 'words' is a tensor of strings"),
        (of_sequence, [sequence, place], "input 'many' is a sequence"),
    ):
        code, _, stderr = run(capfd, "compile", saved(tmp_path / "m.onnx", [node], inputs, "z"), "-q")
        assert code == 2 and told in stderr and len(stderr.splitlines()) == 1, stderr
