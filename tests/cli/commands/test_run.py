# SPDX-License-Identifier: Apache-2.0
"""run: compiled models on inputs from files and on random ones."""

from __future__ import annotations

import json
import os
import platform
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm

from tests.cli.helpers import run
from tvm_stitch.importers.onnx.compare import onnxruntime_call


@pytest.fixture(scope="module")
def compiled(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with a symbolic batch, compiled."""
    from tvm_stitch import cli

    folder = tmp_path_factory.mktemp("compiled") / "out"
    assert cli.main(["compile", str(model), "-q", "-o", str(folder)]) == 0
    return folder


def x(rows: int = 5) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((rows, 16)).astype("float32")


@pytest.mark.parametrize("how", ["x=x.npy", "x.npy", "arrays.npz"])
@pytest.mark.parametrize("what", ["folder", "library"])
def test_given_inputs(
    how: str, what: str, compiled: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", x())
    np.savez("arrays.npz", x=x())
    path = compiled if what == "folder" else compiled / "model.so"
    code, stdout, _ = run(capfd, "run", path, "-i", how, "-o", "results.npz", "--repeats", 2, "-q")
    assert code == 0
    with np.load("results.npz") as results:
        expected = onnxruntime_call(onnx.load(str(model)), {"x": x()})()[0]
        np.testing.assert_allclose(results["y"], expected, rtol=1e-4, atol=1e-5)
    first, last = stdout.splitlines()
    assert first.startswith(f"y: float32[5, 8], {expected.min():.3f}"[:-1])
    assert last.startswith("median ") and "of 2 calls on cpu, the middle half " in last


def test_random_inputs(compiled: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("run", compiled, "--shape", "x=3,16", "--seed", 4, "--json", "--repeats", 1)
    code, stdout, stderr = run(capfd, *arguments)
    data = json.loads(stdout)
    assert code == 0 and data["random_inputs"] == ["x"] and data["inputs"]["x"]["shape"] == [3, 16]
    assert data["outputs"]["y"]["shape"] == [3, 8] and data["outputs"]["y"]["not_finite"] == 0
    assert data["median_ms"] > 0 and "timing 1 calls" in stderr
    again = json.loads(run(capfd, *arguments)[1])
    assert again["outputs"] == data["outputs"]
    code, stdout, _ = run(capfd, "run", compiled, "--shape", "x=3,16", "-q")
    assert code == 0 and "inputs: x random, seed 0" in stdout


def test_a_library_without_a_manifest(
    compiled: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(compiled / "model.so", tmp_path / "alone.so")
    np.save(tmp_path / "x.npy", x())
    code, stdout, _ = run(capfd, "run", tmp_path / "alone.so", "-i", tmp_path / "x.npy", "-q")
    assert code == 0 and stdout.startswith("output0: float32[5, 8], ")
    code, _, stderr = run(capfd, "run", tmp_path / "alone.so")
    assert code == 2 and "does not say what it takes; give --input FILE" in stderr


def test_a_model_for_a_device_that_is_not_here(
    compiled: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if tvm.cuda(0).exist:
        pytest.skip("needs a machine without a CUDA device")
    shutil.copytree(compiled, tmp_path / "gpu")
    manifest = json.loads((compiled / "manifest.json").read_text())
    (tmp_path / "gpu" / "manifest.json").write_text(json.dumps(manifest | {"target": {"kind": "cuda"}}))
    code, _, stderr = run(capfd, "run", tmp_path / "gpu", "--shape", "x=2,16")
    assert code == 1 and "no cuda device here, for which the model was compiled" in stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "has a symbolic dimension; a shape must be given for it: --shape x=N,16, each N a number, or --input",
        ),
        (["--shape", "x=2,17"], "does not fit the input x: float32[batch, 16]"),
        (["--shape", "z=2,16"], "no input 'z'; its inputs are x: float32[batch, 16]"),
        (["-i", "no.npy"], "no file no.npy"),
        (["-i", "text"], "text is not a .npy or .npz file"),
        (["-i", "z=x.npy"], "no input 'z'"),
        (["-i", "x=arrays.npz"], "arrays.npz names its arrays itself; leave x= out"),
        (["-i", "x.npy", "-i", "x=x.npy"], "x is given twice"),
        (["-i", "double.npy"], "the input x: float32[batch, 16] is given as float64[5, 16]"),
        (["-i", "wide.npy"], "is given as float32[5, 17]"),
        (["-i", "x.npy", "-o", "."], "is a folder"),
        (["-i", "x.npy", "--device", "cuda"], "--device cuda: the model was compiled for cpu"),
        (["-i", "pipe"], "pipe is not a regular file; give a .npy or .npz file"),
        (["-i", "x.npy", "-o", "x.npy"], "x.npy is read by this command; give another path"),
        (["-i", "x.npy", "--shape", "x=6,16"], "gives x the shape [6, 16], its --input has [5, 16]"),
        (["--repeats", "0"], "--repeats must be at least 1"),
    ],
)
def test_what_does_not_fit(
    arguments: list[str], message: str, compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", x())
    np.savez("arrays.npz", x=x())
    np.save("double.npy", x().astype("float64"))
    np.save("wide.npy", np.ones((5, 17), "float32"))
    Path("text").write_text("no array")
    os.mkfifo("pipe")
    code, stdout, stderr = run(capfd, "run", compiled, *arguments, "-q")
    assert code == 2 and stdout == ""
    (line,) = stderr.splitlines()
    assert line.startswith("tvm-stitch: error: ") and message in line


@pytest.mark.parametrize("length", [0.5, 0.999], ids=str)
def test_a_library_that_is_cut_off(
    length: float, compiled: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In a line: the loader would end the process."""
    shutil.copytree(compiled, tmp_path / "out")
    data = (compiled / "model.so").read_bytes()
    (tmp_path / "out" / "model.so").write_bytes(data[: int(len(data) * length)])
    code, _, stderr = run(capfd, "run", tmp_path / "out", "--shape", "x=2,16")
    assert code == 2 and "model.so is cut off; compile the model again" in stderr


@pytest.mark.parametrize(
    "said",
    [
        "{", "[]", '{"inputs": 5}', '{"inputs": [{"name": "x"}]}', '{"outputs": null}', '{"target": []}',
        '{"library": 5}', '{"cpu_flags": 7}', '{"inputs": [{"name": "x", "dtype": "float32", "shape": [2.5]}]}',
        '{"inputs": [{"name": "x", "dtype": "float33", "shape": [2]}]}', '{"inputs": [{"name": "x", "dtype": "f4", '
        '"shape": [2]}]}', '{"inputs": [{"name": "x", "dtype": "int8", "shape": [-2]}]}',
    ],
)  # fmt: skip
def test_a_manifest_that_is_none(
    said: str, compiled: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(compiled, tmp_path / "out")
    (tmp_path / "out" / "manifest.json").write_text(said)
    code, _, stderr = run(capfd, "run", tmp_path / "out", "--shape", "x=2,16")
    assert code == 2 and "is not a manifest of tvm-stitch compile; compile the model again" in stderr


def test_a_model_for_a_newer_cpu(compiled: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In a line, before its code runs: an illegal instruction would end the process."""
    shutil.copytree(compiled, tmp_path / "newer")
    manifest = json.loads((compiled / "manifest.json").read_text())
    assert "sse4_2" in manifest["cpu_flags"] or platform.machine() != "x86_64"
    newer = json.dumps(manifest | {"cpu_flags": [*manifest["cpu_flags"], "avx9000"]})
    (tmp_path / "newer" / "manifest.json").write_text(newer)
    code, stdout, stderr = run(capfd, "run", tmp_path / "newer", "--shape", "x=2,16", "-q")
    if platform.machine() == "x86_64":
        assert code == 1 and stdout == ""
        assert (
            "does not run here: this machine's CPU is older than the one it is compiled for: it lacks avx9000"
            in stderr
        )


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([x()[0]], "does not take input0: float32[16]: expect Tensor with ndim 2 but get 1"),
        ([x()[:, 1:]], "does not take input0: float32[5, 15]: shape[1] mismatch to specified constant"),
        ([x().astype("float64")], "expect Tensor with dtype float32 but get float64"),
        ([x(), x()], "expects 1 arguments (x), but 2 arguments were provided"),
    ],
)
def test_what_does_not_fit_a_library_alone(
    arrays: list[np.ndarray], message: str, compiled: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(compiled / "model.so", tmp_path / "alone.so")
    given: list[object] = []
    for i, array in enumerate(arrays):
        np.save(tmp_path / f"{i}.npy", array)
        given += ["-i", tmp_path / f"{i}.npy"]
    code, stdout, stderr = run(capfd, "run", tmp_path / "alone.so", "-q", *given)
    assert code == 2 and stdout == ""
    (line,) = stderr.splitlines()
    assert line.startswith("tvm-stitch: error: the model ") and message in line


def test_a_manifest_of_a_target_that_is_none(
    compiled: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(compiled, tmp_path / "odd")
    manifest = json.loads((compiled / "manifest.json").read_text())
    for kind in ("zzz", ["llvm"]):
        (tmp_path / "odd" / "manifest.json").write_text(json.dumps(manifest | {"target": {"kind": kind}}))
        code, _, stderr = run(capfd, "run", tmp_path / "odd", "-q")
        assert code == 2 and "is not a manifest of tvm-stitch compile" in stderr


def _copy(compiled: Path, folder: Path, library: str) -> Path:
    """Copy a compiled model, with another name of its library in the manifest."""
    folder.mkdir(parents=True)
    manifest = json.loads((compiled / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "library": library}))
    return folder


@pytest.mark.parametrize("name", ["../other/model.so", "/other/model.so", "..", "", "a/model.so"])
def test_a_manifest_names_a_file_of_its_folder(
    compiled: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    for other in ("other", "out/a"):
        (tmp_path / other).mkdir(parents=True)
        shutil.copy(compiled / "model.so", tmp_path / other / "model.so")
    (tmp_path / "out" / "a").rename(tmp_path / "a")
    (tmp_path / "out").rmdir()
    folder = _copy(compiled, tmp_path / "out", str(tmp_path / name[1:]) if name.startswith("/") else name)
    (tmp_path / "a").rename(folder / "a")
    code, _, stderr = run(capfd, "run", folder)
    assert code == 2 and "is no name of a file in its folder; compile the model again" in stderr


def test_a_library_is_no_link_out_of_its_folder(
    compiled: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = _copy(compiled, tmp_path / "out", "model.so")
    (folder / "model.so").symlink_to(compiled / "model.so")
    code, _, stderr = run(capfd, "run", folder)
    assert code == 2 and "is a link out of its folder; copy " in stderr
    (folder / "model.so").rename(folder / "link")
    shutil.copy(compiled / "model.so", folder / "other.so")
    (folder / "model.so").symlink_to("other.so")
    assert run(capfd, "run", folder, "--repeats", 1, "--shape", "x=3,16")[0] == 0


@pytest.mark.parametrize("how", ["folder", "library"])
def test_a_library_that_others_may_write_is_not_loaded(
    compiled: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], how: str
) -> None:
    folder = _copy(compiled, tmp_path / "out", "model.so")
    shutil.copy(compiled / "model.so", folder / "model.so")
    (folder / "model.so").chmod(0o777)
    code, _, stderr = run(capfd, "run", folder if how == "folder" else folder / "model.so")
    assert (
        code == 2 and f"other users may write to {folder / 'model.so'}; if you trust it: chmod go-w" in stderr
    )
