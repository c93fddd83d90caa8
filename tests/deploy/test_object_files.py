# SPDX-License-Identifier: Apache-2.0
"""A disk without space costs the export, and not the process."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

from tvm_stitch.deploy.linking import LinkError, linking
from tvm_stitch.deploy.object_files import NotWritten, objects_in_child

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT = 1 << 16


def _ends(said: bytes, code: int = 1) -> object:
    """Return a method that writes some bytes and ends the process, as LLVM does."""

    def write(_module: object, file_name: str, _fmt: str = "") -> None:
        Path(file_name).write_bytes(b"begin")
        os.write(2, said)
        os._exit(code)

    return write


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            b"LLVM ERROR: IO failure on output stream: No space left on device\n",
            r"does not fit into {}, where \d+ bytes",
        ),
        (
            b"LLVM ERROR: IO failure on output stream: File too large\n",
            r"the most of a file in {} .ulimit -f.",
        ),
        (b"LLVM ERROR: out of registers\n", r"cannot be written to {}, .*: LLVM ERROR: out of registers"),
    ],
    ids=["full", "limit", "other"],
)
def test_a_process_that_ends_is_an_error(
    said: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tvm.runtime.Module, "write_to_file", _ends(said))
    folder = tmp_path / "work"
    folder.mkdir()
    before = tvm.runtime.Module.write_to_file
    with pytest.raises(NotWritten, match=message.format(tmp_path)), objects_in_child():
        tvm.runtime.Module.write_to_file(None, str(folder / "a.o"))
    with pytest.raises(LinkError, match=message.format(tmp_path)), linking(tmp_path / "model.so"):
        tvm.runtime.Module.write_to_file(None, str(folder / "a.o"))
    assert tvm.runtime.Module.write_to_file is before


def test_an_exception_is_raised_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(_module: object, _file_name: str, _fmt: str = "") -> None:
        raise LookupError("no such format")

    monkeypatch.setattr(tvm.runtime.Module, "write_to_file", write)
    with pytest.raises(LookupError, match="no such format"), objects_in_child():
        tvm.runtime.Module.write_to_file(None, str(tmp_path / "a.o"))


def test_a_command_without_space_says_so_and_cleans_up(tmp_path: Path) -> None:
    value, rows = helper.make_tensor_value_info, [256, 256]
    weight = numpy_helper.from_array(np.ones(rows, "float32"), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, rows)],
        [value("y", TensorProto.FLOAT, rows)],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tvm_stitch.cli", "compile", "model.onnx", "-o", "out"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "tmp")},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT)),
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith(
        "tvm-stitch: compile failed: the compiled model takes more than"
    )
    assert str(tmp_path / "tmp") in last and str(LIMIT) in last
    assert list((tmp_path / "tmp").iterdir()) == [] and not (tmp_path / "out").exists()
