# SPDX-License-Identifier: Apache-2.0
"""The command line as a whole: what goes where, and exit codes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tvm import relax

import tvm_stitch
from tests.cli.helpers import run
from tvm_stitch.cli import program

PROGRAM = [sys.executable, "-m", "tvm_stitch.cli"]


def test_versions(capfd: pytest.CaptureFixture[str]) -> None:
    code, stdout, _ = run(capfd, "--version")
    assert code == 0 and stdout.startswith(f"tvm-stitch {tvm_stitch.__version__}\napache-tvm 0.27")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "{model}", "--target", "nonsense"], "bad target 'nonsense'"),
        (["explain", "{model}", "--target", "cuda -arhc=sm_90"], "arhc"),
        (["explain", "{model}", "--target", "cuda sm_90"], "-key=value"),
        (["explain", "{model}", "--target", "cuda -arch=sm_xx"], "'sm_xx' is not a CUDA architecture"),
        (
            ["compile", "{model}", "--target", "llvm -mcpu=hasswell"],
            "no CPU 'hasswell'; did you mean haswell",
        ),
        (["explain", "{model}", "--target", "{{"], "no valid JSON"),
        (["explain", "{model}", "--target", ""], "no target is given"),
        (["explain", "{model}", "--target", "llvm -mtriple=foo-bar"], "LLVM has no code for 'foo-bar'"),
        (["compile", "{model}", "-o", ""], "-o is empty"),
        (["bench", "{model}", "--seed", "-3"], "--seed must be at least 0"),
        (
            ["explain", "{model}", "--target", "rocm -mcpu=zzz"],
            "ROCm target gets an invalid GFX version: zzz; ",
        ),
        (["explain", "{model}", "--target", "cuda -max_num_threads=0"], "max_num_threads must be 1 to 1024"),
        (["run", "/proc/self/mem"], "/proc/self/mem cannot be read: Input/output error"),
        (["compile", "/proc/self/mem"], "/proc/self/mem cannot be read: Input/output error"),
        (["explain", "no\nsuch.onnx"], r"no file no\nsuch.onnx; give the path"),
        (["explain", "no\rsuch\x1b[0m.onnx"], r"no file no\rsuch\x1b[0m.onnx; give the path"),
        (["explain", "{lined}"], r"of\nlines.onnx is not a valid ONNX model"),
        (["explain", "{model}", "--config", "nope=1"], "nope"),
        (["explain", "{model}", "--config", "strict=maybe"], "strict"),
        (["explain", "{model}", "--config", "strict"], "key=value"),
        (["explain", "{model}", "--shape", "x=1,a"], "input=1,128"),
        (["explain", "{model}", "--shape", "x=-1,16"], "input=1,128"),
        (["explain", "{model}", "--shape", "z=1,16"], "no input 'z'; its inputs are x: float32[batch, 16]"),
        (["explain", "{model}", "--shape", "x=1,17"], "does not fit"),
        (["explain", "no/such.onnx"], "no file no/such.onnx"),
        (["explain", "{broken}"], "not a valid ONNX model"),
        (
            ["explain", "{model}", "--target", "cuda -arch=sm_77x"],
            "no architecture 'sm_77x'; did you mean sm_75",
        ),
        (["explain", "{model}", "--target", "llvm -mattr=+avx2,-nope"], "LLVM knows no feature 'nope'"),
        (["explain", "{model}", "--target", "llvm -num-cores=-3"], "num-cores must be at least 1, got -3"),
        (["explain", "{model}", "--target", "llvm -num-cores=x"], "the option num-cores takes an integer"),
        (["explain", "{model}", "--shape", "x=1,16", "--shape", "x=2,16"], "two shapes, [1, 16] and [2, 16]"),
        (["explain", "{model}", "--shape", f"x={10**20},16"], "no tensor has more than"),
        (["explain", "{model}", "--html", "{model}"], "is read by this command; give another path"),
        (["bench", "{model}", "--repeats", str(10**20)], "--repeats must be at most 1000000"),
        (["compile", "{library}"], "is a library; a compiled model is run by: tvm-stitch run"),
        (["compile", "{archive}"], "is not a program of torch.export; torch.export.save("),
        (["compile", "{folder}"], "no file "),
        (["run", "{model}"], "head.onnx is not a compiled model; compile it first: tvm-stitch compile "),
        (["run", "{library}", "-i", "{array}"], "library.so is cut off; compile the model again"),
        (["run", "{folder}"], "has no manifest.json; give a folder that tvm-stitch compile wrote"),
        (["run", "no/such"], "no file no/such"),
        (["run", "no/such", "-i", "x" * 300], "... is not a path: File name too long"),
        (["explain", "{model}", "--target", "cpu"], "there is no target 'cpu'; did you mean native?"),
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
    (lined := tmp_path / "of\nlines.onnx").write_bytes(b"this is no protobuf")
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
    (library := tmp_path / "library.so").write_bytes(b"\x7fELF and no more")
    with zipfile.ZipFile(archive := tmp_path / "archive.pt2", "w") as file:
        file.writestr("readme", "no program")
    (folder := tmp_path / "folder").mkdir()
    np.save(array := tmp_path / "array.npy", np.ones(3))
    paths = {"library": library, "lined": lined, "array": array, "archive": archive, "folder": folder}
    filled = [a.format(model=model, broken=broken, unnamed=unnamed, **paths) for a in arguments]
    code, stdout, stderr = run(capfd, *filled, "--quiet")
    assert code == 2
    assert stdout == ""
    assert stderr.startswith("tvm-stitch: error: ") and len(stderr.splitlines()) == 1 and message in stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["compile"],
        ["bench", "m.onnx", "--repeats", "many"],
        ["compile", "m.onnx", "of\nlines"],
        ["explain", "x" * 300],
        ["explain", "m\0.onnx"],
        ["explain", "m.onnx", "--html", "x" * 300],
        ["compile", "m.onnx", "-o", "out\0"],
        ["run", "x" * 300],
    ],
)
def test_argument_errors_exit_2(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    code, stdout, stderr = run(capfd, *arguments)
    assert code == 2 and stdout == ""
    (line,) = stderr.splitlines()
    assert line.startswith("tvm-stitch") and ": error: " in line and "--help lists all options" in line


@pytest.mark.parametrize("target", ["hexagon", "nvptx", "rocm", "webgpu"])
def test_targets_that_nothing_is_stitched_for(
    target: str, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """TVM compiles all of it, or fails in one line of its own."""
    options = ("--shape", "x=8,16", "--target", target, "--quiet")
    code, _, stderr = run(capfd, "compile", model, "-o", tmp_path / "out", *options)
    (line,) = stderr.splitlines()
    if code == 0:
        assert line.endswith(f"kernels are emitted for cuda, llvm, not for {target}")
    else:
        assert code == 1 and line.startswith(
            f"tvm-stitch: compile failed: TVM's own compiler for {target} failed: "
        )
        assert line.endswith("; kernels are stitched for llvm and cuda") and "Check failed" not in line
    code, stdout, stderr = run(capfd, "explain", model, *options)
    assert (code, stderr) == (0, "") and target in stdout


def test_names_of_any_bytes(model: Path, tmp_path: Path) -> None:
    """Text that stdout cannot take as it is does not end the command."""
    command = [*PROGRAM, "compile", str(model), "--shape", "x=8,16", "-q", "-o", b"o\nut\xff"]
    env = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, env=env)
    assert done.returncode == 0 and done.stderr == b"", done.stderr
    assert done.stdout.startswith(rb"o\nut\udcff/model.so: ") and len(done.stdout.splitlines()) == 1


def test_operators_unknown_to_the_importer_exit_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    graph = helper.make_graph([helper.make_node("Unheard", ["x"], ["y"], domain="odd")], "g", [info], [out])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("odd", 1)]
    path = tmp_path / "odd.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    code, stdout, stderr = run(capfd, "explain", path)
    assert code == 1 and stdout == ""
    assert (
        f"{path} cannot be imported: node 0 (Unheard '' of domain odd, opset 1): no converter"
        in stderr.splitlines()[-1]
    )
    assert "OpNotImplemented" not in stderr and "BlockBuilder" not in stderr and "Traceback" not in stderr


@pytest.mark.parametrize("name", ["parser", "message_of"])
def test_an_interrupt_of_the_command_line_itself(
    name: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While options are read, and while the message of an error is printed."""

    def interrupted(*_args: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, name, interrupted)
    if name != "parser":
        monkeypatch.setattr(program, "import_compiler", lambda: 1 / 0)
    (tmp_path / "model.onnx").write_bytes(b"")
    code, stdout, stderr = run(capfd, "compile", tmp_path / "model.onnx", "-o", tmp_path / "out")
    assert (code, stdout, stderr) == (130, "", "tvm-stitch: interrupted\n")


def test_as_a_program() -> None:
    done = subprocess.run([*PROGRAM, "explain", "no/such.onnx"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == "" and "no file no/such.onnx" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["--version"], ["bench", "no/such.onnx"]]
)
def test_what_needs_no_compiler_takes_no_time(arguments: list[str]) -> None:
    code = "import sys; from tvm_stitch.cli import main; main(sys.argv[1:]); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    imported = set(done.stdout.splitlines()[-1].split())
    assert "tvm_stitch.cli.commands.run" in imported and imported & {"tvm", "numpy", "onnx", "torch"} == set()


def test_onnx_models_need_no_pytorch(model: Path) -> None:
    code = "import sys; from tvm_stitch.cli import main; main(sys.argv[1:]); print(*sys.modules)"
    command = [sys.executable, "-c", code, "explain", str(model), "--target", "llvm"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = set(done.stdout.splitlines()[-1].split())
    assert "tvm" in imported and "torch" not in imported


def test_the_full_help_names_all_commands(capfd: pytest.CaptureFixture[str]) -> None:
    code, stdout, _ = run(capfd, "--help")
    assert code == 0
    assert [c for c in ("compile", "explain", "run", "bench") if f"    {c} " not in stdout] == []


def test_a_reader_that_goes_away(model: Path) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "explain", str(model), "--shape", "x=8,16", "-q"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    told = process.stderr.read().splitlines()
    assert process.wait(60) == 1
    assert told[-1:] == ["tvm-stitch: the result could not be written to stdout: Broken pipe"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout(model: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [*PROGRAM, "explain", str(model), "--shape", "x=8,16", "-q"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "could not be written to stdout: No space left on device" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("raised", ["ours", "the linker's"])
def test_a_full_disk(
    raised: str,
    model: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object, **_options: object) -> None:
        if raised == "ours":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/out/model.so")
        raise RuntimeError("Compilation error:\n/usr/bin/ld: final link failed: No space left on device\n")

    monkeypatch.setattr(relax.vm_build.VMExecutable, "export_library", full)
    code, stdout, stderr = run(capfd, "compile", model, "-q", "-o", tmp_path / "out")
    assert code == 1 and stdout == "" and list(tmp_path.iterdir()) == []
    (line,) = [line for line in stderr.splitlines() if "failed" in line]
    assert line.startswith("tvm-stitch: compile failed: no space is left on the disk")


def test_too_little_memory(
    model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 2 TiB")

    monkeypatch.setattr("tvm_stitch.cli.commands.explain.read_job", exhausted)
    code, _, stderr = run(capfd, "explain", model, "-q")
    assert code == 1
    assert stderr == "tvm-stitch: explain failed: there is not enough memory here: Unable to allocate 2 TiB\n"


@pytest.mark.parametrize("said", ["0", "many"])
def test_no_number_of_threads(said: str, model: Path) -> None:
    command = [sys.executable, "-m", "tvm_stitch.cli", "explain", str(model), "-q"]
    environment = {**os.environ, "TVM_NUM_THREADS": said}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("tvm-stitch: error: TVM_NUM_THREADS must be a number of threads")
    assert len(done.stderr.splitlines()) == 1
