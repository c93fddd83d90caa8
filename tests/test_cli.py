# SPDX-License-Identifier: Apache-2.0
"""The command line: what it writes and prints, where, and its exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax

import tvm_stitch
from tvm_stitch import cli
from tvm_stitch.testing.compare import onnxruntime_outputs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A softmax by primitives between two matmuls; x is (batch, 16)."""
    rng = np.random.default_rng(0)
    weights = [
        helper.make_tensor(
            name, TensorProto.FLOAT, shape, rng.standard_normal(shape).astype("float32").ravel()
        )
        for name, shape in (("w1", (16, 24)), ("w2", (24, 8)))
    ]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [-1])
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"]),
            helper.make_node("ReduceMax", ["h"], ["top"], axes=[-1], keepdims=1),
            helper.make_node("Sub", ["h", "top"], ["low"]),
            helper.make_node("Exp", ["low"], ["e"]),
            helper.make_node("ReduceSum", ["e", "axes"], ["total"], keepdims=1),
            helper.make_node("Div", ["e", "total"], ["p"]),
            helper.make_node("MatMul", ["p", "w2"], ["y"]),
        ],
        "head",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        [*weights, axes],
    )
    path = tmp_path_factory.mktemp("models") / "head.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def run(capfd: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr, those of native code included."""
    code = cli.main([str(arg) for arg in argv])
    captured = capfd.readouterr()
    return code, captured.out, captured.err


def test_compile_writes_a_library_that_runs(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "out"
    code, stdout, stderr = run(capfd, "compile", model, "--shape", "x=5,16", "-o", out)
    assert code == 0
    assert "memory-intensive" in stdout and "compiling for llvm" in stderr
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
    expected = onnxruntime_outputs(onnx.load(str(model)), {"x": x})[0]
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


def test_explain_prints_text_or_json(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, text, stderr = run(capfd, "explain", model, "--shape", "x=8,16", "--quiet")
    assert code == 0 and text.strip()
    assert "planning" not in stderr
    code, stdout, _ = run(capfd, "explain", model, "--shape", "x=8,16", "--json")
    assert code == 0
    assert isinstance(json.loads(stdout), dict)


def test_explain_writes_a_page_and_a_timeline(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page, timeline = tmp_path / "new" / "report.html", tmp_path / "trace.json"
    code, stdout, stderr = run(
        capfd, "explain", model, "--shape", "x=8,16", "--html", page, "--trace", timeline
    )
    assert code == 0 and "3 kernels a call" in stdout and f"writing {page}" in stderr
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "<h1>head</h1>" in text and '"source":"p"' in text
    events = [e for e in json.loads(timeline.read_text())["traceEvents"] if e["ph"] == "X"]
    assert len(events) == 3 and sorted(p.name for p in tmp_path.iterdir()) == ["new", "trace.json"]


def test_explain_answers_for_a_pair(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("explain", model, "--shape", "x=8,16", "-q", "--why")
    code, stdout, _ = run(capfd, *arguments, "low", "p")
    assert code == 0 and stdout.startswith("low and p are in one kernel: stitch_")
    code, stdout, _ = run(capfd, *arguments, "h", "p")
    assert code == 0 and "compute-intensive" in stdout and "What to do: Nothing" in stdout
    code, _, stderr = run(capfd, *arguments, "h", "pp")
    assert code == 2 and stderr.endswith(
        "tvm-stitch: error: --why: nothing is called 'pp'; did you mean p?\n"
    )


def test_explain_tells_everything_on_request(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, stdout, _ = run(capfd, "explain", model, "--shape", "x=8,16", "-q", "--verbose")
    assert code == 0 and "least possible traffic" in stdout and "Boundaries:" in stdout


@pytest.mark.parametrize("option", ["--html", "--trace"])
def test_outputs_that_cannot_be_written(
    option: str, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("kept")
    for path, message in (
        (tmp_path, "is a folder; give the path of a file"),
        (tmp_path / "file" / "page", "cannot write"),
        ("", "is a folder"),
    ):
        code, stdout, stderr = run(capfd, "explain", model, "--shape", "x=8,16", "-q", option, path)
        assert code == 2 and stdout == ""
        (line,) = [line for line in stderr.splitlines() if line.startswith("tvm-stitch")]
        assert line.startswith("tvm-stitch: error: ") and message in line
    assert (tmp_path / "file").read_text() == "kept" and [p.name for p in tmp_path.iterdir()] == ["file"]


def test_two_outputs_in_one_file(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, stderr = run(capfd, "explain", model, "--html", tmp_path / "a", "--trace", tmp_path / "a")
    assert code == 2 and "--html and --trace name one file" in stderr and list(tmp_path.iterdir()) == []


def test_options_come_before_and_behind_the_file(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ("--shape", "x=8,16", "--config", "remote=false", "--config", "max_operators=7")
    for arguments in ((*options, model), (model, *options)):
        code, stdout, _ = run(capfd, "explain", *arguments, "--json")
        assert code == 0 and json.loads(stdout)["kernels"]


def test_versions(capfd: pytest.CaptureFixture[str]) -> None:
    code, stdout, _ = run(capfd, "--version")
    assert code == 0 and stdout.startswith(f"tvm-stitch {tvm_stitch.__version__}\napache-tvm 0.27")


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
    code, stdout, _ = run(capfd, "bench", *arguments, "--repeats", 2, "--json")
    data = json.loads(stdout)
    assert code == 0 and data["stitched"]["max_abs_error"] < (2e-3 if precision == "float16" else 2e-2)
    code, _, stderr = run(capfd, "compile", model, "--precision", "float8")
    assert code == 2 and "float16" in stderr


def test_bench_compares_with_stock_and_onnxruntime(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("bench", model, "--shape", "x=32,16", "--repeats", 3)
    code, stdout, _ = run(capfd, *arguments, "--json")
    assert code == 0
    data = json.loads(stdout)
    assert data["stitched"]["max_abs_error"] < 1e-5 and data["stock"]["max_abs_error"] < 1e-5
    assert data["stitched"]["kernels"]["total"] < data["stock"]["kernels"]["total"]
    assert data["speedup"] == pytest.approx(data["stock"]["median_ms"] / data["stitched"]["median_ms"])
    code, stdout, stderr = run(capfd, *arguments)
    assert code == 0
    assert "times as fast as stock" in stdout and "ONNX Runtime" in stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "{model}", "--target", "nonsense"], "bad target 'nonsense'"),
        (["explain", "{model}", "--target", "cuda -arhc=sm_90"], "arhc"),
        (["explain", "{model}", "--target", "cuda sm_90"], "-key=value"),
        (["explain", "{model}", "--target", "cuda -arch=sm_xx"], "'sm_xx' is no CUDA architecture"),
        (
            ["compile", "{model}", "--target", "llvm -mcpu=hasswell"],
            "no CPU 'hasswell'; did you mean haswell",
        ),
        (["explain", "{model}", "--target", "{{"], "no valid JSON"),
        (["explain", "{model}", "--target", ""], "no target is given"),
        (["explain", "{model}", "--target", "llvm -mtriple=foo-bar"], "LLVM has no code for 'foo-bar'"),
        (["compile", "{model}", "-o", ""], "-o is empty"),
        (["bench", "{model}", "--seed", "-3"], "--seed must be at least 0"),
        (["explain", "{model}", "--config", "nope=1"], "nope"),
        (["explain", "{model}", "--config", "strict=maybe"], "strict"),
        (["explain", "{model}", "--config", "strict"], "key=value"),
        (["explain", "{model}", "--shape", "x=1,a"], "input=1,128"),
        (["explain", "{model}", "--shape", "x=-1,16"], "input=1,128"),
        (["explain", "{model}", "--shape", "z=1,16"], "no input 'z'; its inputs are x: float32[batch, 16]"),
        (["explain", "{model}", "--shape", "x=1,17"], "does not fit"),
        (["explain", "no/such.onnx"], "no file no/such.onnx"),
        (["explain", "{broken}"], "no valid ONNX model"),
        (["explain", "{unnamed}"], "input 1 (inputs) of node 0 (Concat '') has no name, and is not optional"),
        (["compile", "{model}", "-o", "{broken}/sub"], "cannot write to"),
        (["bench", "{model}", "--repeats", "0"], "--repeats must be at least 1"),
        (["bench", "{model}"], "symbolic dimension"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(
    arguments: list[str], message: str, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"this is no protobuf")
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Concat", ["x", ""], ["y"], axis=0)],
        "g",
        [info("x", TensorProto.FLOAT, [4])],
        [info("y", TensorProto.FLOAT, [4])],
    )
    unnamed = tmp_path / "unnamed.onnx"  # which onnx.checker accepts
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(unnamed))
    filled = [a.format(model=model, broken=broken, unnamed=unnamed) for a in arguments]
    code, stdout, stderr = run(capfd, *filled, "--quiet")
    assert code == 2
    assert stdout == ""
    errors = [line for line in stderr.splitlines() if line.startswith("tvm-stitch: error: ")]
    assert len(errors) == 1 and message in errors[0]
    assert "Traceback" not in stderr


@pytest.mark.parametrize("arguments", [[], ["fly"], ["compile"], ["bench", "m.onnx", "--repeats", "many"]])
def test_argument_errors_exit_2(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    code, stdout, stderr = run(capfd, *arguments)
    assert code == 2 and stdout == "" and "usage: tvm-stitch" in stderr


def test_failures_exit_1_without_a_traceback(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if tvm.cuda(0).exist:
        pytest.skip("needs a machine without a CUDA device")
    code, stdout, stderr = run(capfd, "bench", model, "--shape", "x=8,16", "--target", "cuda")
    assert code == 1 and stdout == ""
    assert "bench failed: RuntimeError: no cuda device here" in stderr and "Traceback" not in stderr
    with pytest.raises(RuntimeError, match="no cuda device"):
        cli.main(["bench", str(model), "--shape", "x=8,16", "--target", "cuda", "--debug"])


def test_operators_unknown_to_the_importer_exit_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    graph = helper.make_graph([helper.make_node("Unheard", ["x"], ["y"], domain="odd")], "g", [info], [out])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("odd", 1)]
    path = tmp_path / "odd.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    code, stdout, stderr = run(capfd, "explain", path)
    assert code == 1 and stdout == ""
    assert "Unheard" in stderr and "Traceback" not in stderr


def _refuse_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm_stitch.relax import schedule_stitch_ops as schedule

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
    from tvm_stitch.relax import schedule_stitch_ops as schedule

    runs, original = [], schedule.emit
    monkeypatch.setattr(schedule, "emit", lambda *args: runs.append(args) or original(*args))
    assert run(capfd, "compile", model, "--shape", "x=5,16", "-o", tmp_path)[0] == 0
    assert len(runs) == 1


@pytest.mark.parametrize("where", ["emit", "export"])
@pytest.mark.parametrize("earlier", [False, True])
def test_an_interrupt_exits_130_and_leaves_nothing(
    where: str,
    earlier: bool,
    model: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tvm_stitch.relax import schedule_stitch_ops as schedule

    out = tmp_path / "out"
    if earlier:
        out.mkdir()
        (out / "model.so").write_text("earlier")
    owner, name = (schedule, "emit") if where == "emit" else (relax.vm_build.VMExecutable, "export_library")
    original = getattr(owner, name)

    def interrupted(*args: object) -> object:
        result = original(*args)
        signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(owner, name, interrupted)
    code, stdout, stderr = run(capfd, "compile", model, "--shape", "x=5,16", "-o", out)
    assert code == 130 and stdout == "" and "interrupted" in stderr and "Traceback" not in stderr
    assert [p.name for p in tmp_path.iterdir()] == (["out"] if earlier else [])
    assert not earlier or [(p.name, p.read_text()) for p in out.iterdir()] == [("model.so", "earlier")]


@pytest.mark.parametrize("name", ["_parser", "error_text"])
def test_an_interrupt_of_the_command_line_itself(
    name: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While options are read, and while an error is told."""

    def interrupted(*_args: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, name, interrupted)
    if name != "_parser":
        monkeypatch.setattr(cli, "watched", lambda: 1 / 0)
    code, stdout, stderr = run(capfd, "compile", tmp_path / "model.onnx", "-o", tmp_path / "out")
    assert (code, stdout, stderr) == (130, "", "tvm-stitch: interrupted\n")


@pytest.mark.parametrize(
    ("text", "kind", "attribute", "value"),
    [
        ("llvm", "llvm", None, None),
        ("nvidia/nvidia-a100", "cuda", "arch", "sm_80"),
        ('{"kind": "cuda", "arch": "sm_70"}', "cuda", "arch", "sm_70"),
        ("llvm -mcpu=haswell -mattr=+avx2,+fma", "llvm", "mattr", ["+avx2", "+fma"]),
        ("llvm -mattr=+avx2", "llvm", "mattr", ["+avx2"]),
        ('{"kind": "cuda"}', "cuda", "max_num_threads", 1024),
        ("cuda -arch=sm_90 -max_num_threads=512", "cuda", "max_num_threads", 512),
    ],
)
def test_targets(text: str, kind: str, attribute: str | None, value: object) -> None:
    target = cli.parse_target(text)
    assert target.kind.name == kind
    if attribute:
        found = target.attrs[attribute]
        assert (list(found) if isinstance(value, list) else found) == value
    if kind == "cuda":
        assert target.host.kind.name == "llvm"


def test_native_is_this_machines_cpu() -> None:
    assert str(cli.parse_target("native").attrs["mcpu"]) == tvm.target.codegen.llvm_get_system_cpu()


def test_config_values() -> None:
    pairs = ["a=true", "b=False", "c=12", "d=0.5", "e=none", "f=word", "g=[1, 2]", "h=x=y"]
    assert cli.parse_config(pairs) == {
        "a": True,
        "b": False,
        "c": 12,
        "d": 0.5,
        "e": None,
        "f": "word",
        "g": [1, 2],
        "h": "x=y",
    }


def test_shapes() -> None:
    assert cli.parse_shapes(["x=1,128", "a=b=3", "s="]) == {"x": (1, 128), "a=b": (3,), "s": ()}


def test_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tvm_stitch.cli", "explain", "no/such.onnx"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == "" and "no file no/such.onnx" in done.stderr
