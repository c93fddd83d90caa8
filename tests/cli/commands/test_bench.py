# SPDX-License-Identifier: Apache-2.0
"""bench: stock TVM, stitching and a peer."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from tests.cli.helpers import run
from tvm_stitch import cli
from tvm_stitch.cli.contenders import process
from tvm_stitch.cli.contenders.ready import NAMES, Unavailable


def test_bench_compares_with_stock_and_onnxruntime(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, stdout, stderr = run(capfd, "bench", model, "--shape", "x=32,16", "--repeats", 2, "--json")
    assert code == 0 and "preparing the other runtime" in stderr
    data = json.loads(stdout)
    assert data["stitched"]["max_abs_error"] < 1e-5 and data["stock"]["max_abs_error"] < 1e-5
    assert data["stitched"]["kernels"]["total"] < data["stock"]["kernels"]["total"]
    assert data["peer"]["name"] == "ONNX Runtime" and data["peer"]["median_ms"] > 0
    assert len(data["stitched"]["quartiles_ms"]) == 2
    time = f"{data['compared']}_ms"
    assert data["speedup"] == pytest.approx(data["stock"][time] / data["stitched"][time])


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


class _Fake:
    """A contender without a process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outputs = [np.ones((2, 2), "float32")]
        self.seconds = {"stitched": 1e-3, "stock": 2e-3, "peer": 3e-3}[name]
        self.more: list[float] = []
        self.failure = ""

    def prepared(self) -> tuple[list[Any], dict[str, Any]]:
        if self.failure:
            raise Unavailable(self.failure)
        kernels = {"total": 1, "memory_intensive": 1}
        facts = {"name": "ONNX Runtime", "tolerance": 1e-3} if self.name == "peer" else {"kernels": kernels}
        return self.outputs, facts

    def turn(self) -> list[float]:
        return [self.seconds, *self.more]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, _Fake]:
    """Contenders in the place of processes, on an idle machine."""
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    made = {name: _Fake(name) for name in NAMES}
    monkeypatch.setattr(process, "processes", lambda _names, _args: contextlib.nullcontext(made))
    return made


def test_a_model_that_stock_tvm_does_not_compile(
    model: Path, fakes: dict[str, _Fake], capfd: pytest.CaptureFixture[str]
) -> None:
    """The command compares stitching with the peer alone, and prints the reason."""
    fakes["stock"].failure = "not this one"
    code, stdout, _ = run(capfd, "bench", model, "--json")
    data = json.loads(stdout)
    assert code == 0 and data["stock"] == {"failed": "not this one"} and data["speedup"] is None
    assert data["speedup_over_peer"] == pytest.approx(3.0)
    code, stdout, _ = run(capfd, "bench", model)
    lines = stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        "median",
        "stock",
        "stitched",
        "ONNX",
        "error:",
        "load",
        "stitched",
    ]
    assert code == 0 and lines[1].split(None, 2)[2] == "does not compile it: not this one"
    assert [line for line in lines if "times as fast" in line] == [
        "stitched is 3.00 times as fast as ONNX Runtime"
    ]


@pytest.mark.parametrize("wrong", ["stitched", "stock"])
def test_a_wrong_contender_has_no_ratio(
    wrong: str, model: Path, fakes: dict[str, _Fake], capfd: pytest.CaptureFixture[str]
) -> None:
    fakes[wrong].outputs = [np.full((2, 2), 1.5, "float32")]
    code, stdout, _ = run(capfd, "bench", model, "--json")
    data = json.loads(stdout)
    assert code == 0 and data[wrong]["wrong"].startswith("result 0 differs by 5.0e-01")
    assert data["speedup"] is None and (data["speedup_over_peer"] is None) == (wrong == "stitched")
    code, stdout, _ = run(capfd, "bench", model)
    title = "stock TVM" if wrong == "stock" else "stitched"
    assert f"{title} is not compared: it differs from ONNX Runtime: result 0 differs" in stdout
    assert stdout.count("times as fast") == (0 if wrong == "stitched" else 1)


@pytest.mark.parametrize(("load", "busy"), [(0.2, False), (64.0, True)])
def test_a_busy_machine_is_named(
    load: float,
    busy: bool,
    model: Path,
    fakes: dict[str, _Fake],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    _, stdout, _ = run(capfd, "bench", model)
    assert f"load average {load:.1f} before, on 2 processors" in stdout
    assert ("other work on this machine" in stdout) == busy
    assert ("times as fast as ONNX Runtime, by the fastest calls" in stdout) == busy


def test_fastest_calls_are_compared_on_a_busy_machine(
    model: Path,
    fakes: dict[str, _Fake],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads of the peer share a core in most turns. Its fastest call is that of a model alone."""
    monkeypatch.setattr(os, "getloadavg", lambda: (64.0, 64.0, 64.0))
    fakes["peer"].more = [1.0, 1.0]
    _, stdout, _ = run(capfd, "bench", model, "--json")
    data = json.loads(stdout)
    assert data["compared"] == "fastest" and data["peer"]["median_ms"] > 100 * data["peer"]["fastest_ms"]
    assert data["speedup_over_peer"] == pytest.approx(3.0)
