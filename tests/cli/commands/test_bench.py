# SPDX-License-Identifier: Apache-2.0
"""bench: stock TVM, stitching and a peer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tvm

from tests.cli.helpers import run
from tvm_stitch import cli


def test_bench_compares_with_stock_and_onnxruntime(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("bench", model, "--shape", "x=32,16", "--repeats", 3)
    code, stdout, _ = run(capfd, *arguments, "--json")
    assert code == 0
    data = json.loads(stdout)
    assert data["stitched"]["max_abs_error"] < 1e-5 and data["stock"]["max_abs_error"] < 1e-5
    assert data["stitched"]["kernels"]["total"] < data["stock"]["kernels"]["total"]
    assert data["peer"]["name"] == "ONNX Runtime" and data["peer"]["median_ms"] > 0
    assert len(data["stitched"]["quartiles_ms"]) == 2
    assert data["speedup"] == pytest.approx(data["stock"]["median_ms"] / data["stitched"]["median_ms"])
    code, stdout, stderr = run(capfd, *arguments)
    assert code == 0
    rows = [line.split()[0] for line in stdout.splitlines()]
    assert rows == ["median", "stock", "stitched", "ONNX", "error:", "stitched", "stitched"]
    assert "running ONNX Runtime" in stderr


def test_failures_exit_1_without_a_traceback(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if tvm.cuda(0).exist:
        pytest.skip("needs a machine without a CUDA device")
    code, stdout, stderr = run(capfd, "bench", model, "--shape", "x=8,16", "--target", "cuda")
    assert code == 1 and stdout == ""
    assert "bench failed: no cuda device here" in stderr and "Traceback" not in stderr
    with pytest.raises(RuntimeError, match="no cuda device"):
        cli.main(["bench", str(model), "--shape", "x=8,16", "--target", "cuda", "--debug"])


def test_a_model_that_stock_tvm_does_not_compile(
    model: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stitching is timed beside the peer alone, and the reason is told."""
    compile_of_tvm, called = tvm.compile, []

    def refuse(*args: Any, **kwargs: Any) -> Any:
        called.append(args)
        if len(called) == 1:
            raise ValueError("not this one")
        return compile_of_tvm(*args, **kwargs)

    monkeypatch.setattr(tvm, "compile", refuse)
    arguments = ("bench", model, "--shape", "x=8,16", "--repeats", 2)
    code, stdout, _ = run(capfd, *arguments, "--json")
    data = json.loads(stdout)
    assert code == 0 and data["stock"] == {"failed": "not this one"} and data["speedup"] is None
    called.clear()
    code, stdout, _ = run(capfd, *arguments)
    lines = stdout.splitlines()
    assert code == 0 and lines[1].split(None, 2)[2] == "does not compile it: not this one"
    assert [line.split()[0] for line in lines] == [
        "median",
        "stock",
        "stitched",
        "ONNX",
        "error:",
        "stitched",
    ]
