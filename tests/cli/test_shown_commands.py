# SPDX-License-Identifier: Apache-2.0
"""The commands that the guide and the page on deployment show run, in order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.cli.helpers import run

DOCS = Path(__file__).resolve().parents[2] / "docs"
COMMANDS = [
    (page, line)
    for page in (*sorted((DOCS / "user-guide").glob("*.md")), DOCS / "deployment.md")
    for line in re.findall(r"^\$ (tvm-stitch .*)$", page.read_text(encoding="utf-8"), re.M)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder where they run, with a model.onnx, which takes any number of rows of 128, and an array for it."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["input"], ["s"]), helper.make_node("Exp", ["s"], ["y"])],
        "g",
        [info("input", TensorProto.FLOAT, ["rows", 128])],
        [info("y", TensorProto.FLOAT, ["rows", 128])],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(tmp_path / "model.onnx"))
    np.save(tmp_path / "input.npy", np.ones((1, 128), "float32"))
    return tmp_path


def test_there_are_commands_of_every_kind() -> None:
    assert {line.split()[1] for _, line in COMMANDS} == {"compile", "explain", "run", "bench"}


def test_they_run(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """In one test: a later one may read what an earlier one wrote."""
    monkeypatch.chdir(folder)
    for page, line in COMMANDS:
        code, stdout, stderr = run(capfd, *shlex.split(line, comments=True)[1:])
        assert code == 0 and stdout.strip(), (page, line, stderr)
