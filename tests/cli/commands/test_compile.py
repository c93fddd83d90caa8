# SPDX-License-Identifier: Apache-2.0
"""compile: a library that runs, and a manifest that is true of it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

from tests.cli.helpers import run
from tvm_stitch.importers.onnx.compare import onnxruntime_call


def test_compile_writes_a_library_that_runs(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "out"
    code, stdout, stderr = run(capfd, "compile", model, "--shape", "x=5,16", "-o", out)
    assert code == 0
    assert "memory-intensive" in stdout and "compiling for native" in stderr
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["inputs"] == [{"name": "x", "shape": [5, 16], "dtype": "float32"}]
    assert manifest["outputs"] == [{"name": "y", "shape": [5, 8], "dtype": "float32"}]
    assert manifest["target"]["kind"] == "llvm"
    assert manifest["kernels"]["compute_intensive"] == 2
    assert manifest["kernels"]["memory_intensive"] == 1, "one kernel for the softmax"
    assert manifest["config"]["strict"] is False
    assert manifest["versions"]["apache-tvm"].startswith("0.27")
    vm = relax.VirtualMachine(tvm.runtime.load_module(str(out / manifest["library"])), tvm.cpu())
    x = np.random.default_rng(1).standard_normal((5, 16)).astype("float32")
    expected = onnxruntime_call(onnx.load(str(model)), {"x": x})()[0]
    np.testing.assert_allclose(vm["main"](tvm.runtime.tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_compile_for_cuda_needs_no_device(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, stdout, _ = run(
        capfd,
        "compile",
        model,
        "--shape",
        "x=64,16",
        "-o",
        tmp_path,
        "--json",
        "--target",
        "cuda -arch=sm_80",
    )
    assert code == 0
    data = json.loads(stdout)
    assert data["target"]["arch"] == "sm_80"
    assert data["kernels"]["memory_intensive"] == 1
    assert (tmp_path / "model.so").stat().st_size > 0


def _refuse_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm_stitch.relax.stitch import schedule_stitch_ops as schedule

    def refuse(*_: object) -> None:
        raise RuntimeError(
            "Traceback (most recent call last):\n  0: tvm::f()\nRuntimeError: no registers\n  at all"
        )

    monkeypatch.setattr(schedule, "emit", refuse)


def test_what_fell_back_is_told_and_recorded(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("compile", model, "--shape", "x=5,16", "-o", tmp_path / "out")
    code, _, stderr = run(capfd, *arguments)
    assert code == 0 and "left to TVM" not in stderr
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["left"] == {} and len(manifest["stitched"]) == 1
    _refuse_softmax(monkeypatch)
    code, _, stderr = run(capfd, *arguments, "--quiet")
    told = [line for line in stderr.splitlines() if "left to TVM" in line]
    assert code == 0 and len(told) == 1 and "RuntimeError: no registers at all" in told[0]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["stitched"] == [] and len(manifest["left"]) == 1
    assert manifest["kernels"]["memory_intensive"] > 1, "the kernels of the library that was written"
    code, _, stderr = run(capfd, *arguments[:-1], tmp_path / "strict", "--strict")
    assert code == 1 and "StitchError: " in stderr and "no registers at all" in stderr
    assert not (tmp_path / "strict").exists()


@pytest.mark.parametrize("target", ["llvm", "cuda -arch=sm_90"])
def test_the_manifest_names_functions_of_the_library(
    target: str, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, _, _ = run(capfd, "compile", model, "--shape", "x=5,16", "-o", tmp_path, "--target", target)
    assert code == 0
    names = json.loads((tmp_path / "manifest.json").read_text())["kernels"]["names"]
    library = (tmp_path / "model.so").read_bytes()
    assert names and [name for name in names if name.encode() not in library] == []


def test_the_pipeline_runs_once(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tvm_stitch.relax import pipeline as _  # noqa: F401
    from tvm_stitch.relax.stitch import schedule_stitch_ops as schedule

    runs, original = [], schedule.emit
    monkeypatch.setattr(schedule, "emit", lambda *args: runs.append(args) or original(*args))
    assert run(capfd, "compile", model, "--shape", "x=5,16", "-o", tmp_path)[0] == 0
    assert len(runs) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", ["emit", "export"])
@pytest.mark.parametrize("earlier", [False, True])
def test_an_interrupt_exits_130_and_leaves_nothing(
    number: signal.Signals,
    where: str,
    earlier: bool,
    model: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tvm_stitch.relax.stitch import schedule_stitch_ops as schedule

    out = tmp_path / "out"
    if earlier:
        out.mkdir()
        (out / "model.so").write_text("earlier")
    owner, name = (schedule, "emit") if where == "emit" else (relax.vm_build.VMExecutable, "export_library")
    original = getattr(owner, name)

    def interrupted(*args: object, **options: object) -> object:
        result = original(*args, **options)
        signal.raise_signal(number)
        return result

    monkeypatch.setattr(owner, name, interrupted)
    code, stdout, stderr = run(capfd, "compile", model, "--shape", "x=5,16", "-o", out)
    expected, said = (130, "interrupted") if number == signal.SIGINT else (143, "terminated")
    assert code == expected and stdout == "" and said in stderr and "Traceback" not in stderr
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert [p.name for p in tmp_path.iterdir()] == (["out"] if earlier else [])
    assert not earlier or [(p.name, p.read_text()) for p in out.iterdir()] == [("model.so", "earlier")]


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_half_precision(
    precision: str, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = (model, "--shape", "x=8,16", "--precision", precision)
    code, _, _ = run(capfd, "compile", *arguments, "-o", tmp_path)
    assert code == 0
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["precision"] == precision and manifest["inputs"][0]["dtype"] == precision
    assert manifest["outputs"] == [{"name": "y", "shape": [8, 8], "dtype": "float32"}]
    if precision == "float16":
        code, stdout, _ = run(capfd, "bench", *arguments, "--repeats", 2, "--json")
        assert code == 0 and json.loads(stdout)["stitched"]["max_abs_error"] < 2e-3
        code, _, stderr = run(capfd, "compile", model, "--precision", "float8")
        assert code == 2 and "float16" in stderr


def test_a_missing_linker_is_told_before_the_work(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    code, stdout, stderr = run(capfd, "compile", model, "-o", tmp_path / "out")
    assert code == 1 and stdout == "" and not (tmp_path / "out").exists()
    lines = stderr.splitlines()
    assert (
        lines[-1].startswith("tvm-stitch: compile failed: a library") and "no /no/such/compiler" in lines[-1]
    )
    assert not any("compiling" in line for line in lines) and "--debug" not in lines[-1]


def test_a_file_where_the_folder_goes(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("kept")
    code, _, stderr = run(capfd, "compile", model, "-o", tmp_path / "out", "-q")
    assert code == 2 and "out: it is not a folder; give another place with -o" in stderr
    assert (tmp_path / "out").read_text() == "kept"
