# SPDX-License-Identifier: Apache-2.0
"""Scripts that need a GPU say so in one line where there is none."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import _gpu  # noqa: E402

COMMANDS = [
    "ab_splits",
    "ab_threads",
    "barrier_cost",
    "barrier_stress",
    "bench_convolutions",
    "bench_decode",
    "phase_times",
    "bench_grid",
    "bench_models --models lstm --target cuda",
    "bench_recurrent_gpu",
    "bench_rows",
    "bench_suite --target cuda",
    "bench_training --target cuda",
    "gpu_attention_check",
    "gpu_check",
    "gpu_convolution_check",
    "gpu_matmul_check",
    "gpu_zoo_check",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_one_line_without_a_gpu(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    name, *arguments = command.split()
    monkeypatch.setattr(_gpu, "gpus", lambda: 0)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(name).main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: no CUDA device is found here")


def test_every_script_for_gpus_is_among_them() -> None:
    names = {path.stem for path in SCRIPTS.glob("*.py") if "need_gpu" in path.read_text(encoding="utf-8")}
    checks = {path.stem for path in SCRIPTS.glob("gpu_*.py")}
    assert names - {"_gpu"} == {command.split()[0] for command in COMMANDS} and checks <= names


def test_a_cpu_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gpu, "gpus", lambda: 0)
    for target in ("llvm", "native", "emulated-cuda"):
        _gpu.need_gpu(target)


@pytest.mark.parametrize(("code", "printed", "found"), [(0, "2\n", 2), (0, "0\n", 0), (1, "", 0)])
def test_devices_are_counted_by_another_process(
    code: int, printed: str, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = SimpleNamespace(returncode=code, stdout=printed)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert _gpu.gpus() == found
