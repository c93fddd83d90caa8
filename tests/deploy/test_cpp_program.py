# SPDX-License-Identifier: Apache-2.0
"""Compiled models run in a C++ program without Python, and bring the functions of this package that they call."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from tests.deploy.cpp_program import BARE, F32, FFI, ROOT, RUNTIME, built, outputs, run
from tests.graph.helpers import build
from tvm_stitch import cli
from tvm_stitch.deploy import export
from tvm_stitch.relax import pipeline


class Model:
    """A convolution, ReLU, a matrix product with a bias, a softmax and sums of its columns. Its weights are seeded."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.kernel = rng.standard_normal((8, 3, 3, 3), dtype=F32)
        self.weight = rng.standard_normal((8 * 6 * 6, 24), dtype=F32) / 8
        self.bias = rng.standard_normal(24, dtype=F32)
        self.x = rng.standard_normal((4, 3, 6, 6), dtype=F32)

    def relax(self) -> tvm.IRModule:
        def body(emit: Any, x: Any) -> list[Any]:
            y = emit(R.nn.relu(emit(R.nn.conv2d(x, relax.const(self.kernel), padding=1))))
            y = emit(R.matmul(emit(R.reshape(y, (4, 8 * 6 * 6))), relax.const(self.weight)))
            y = emit(R.nn.softmax(emit(R.add(y, relax.const(self.bias))), -1))
            return [y, emit(R.sum(y, axis=0))]

        return build(body, (self.x.shape, F32))

    def onnx(self) -> onnx.ModelProto:
        named = {"kernel": self.kernel, "weight": self.weight, "bias": self.bias}
        values = [onnx.numpy_helper.from_array(value, name) for name, value in named.items()]
        values.append(onnx.numpy_helper.from_array(np.array([0]), "rows"))
        nodes = [
            helper.make_node("Conv", ["x", "kernel"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("Flatten", ["r"], ["f"]),
            helper.make_node("MatMul", ["f", "weight"], ["m"]),
            helper.make_node("Add", ["m", "bias"], ["a"]),
            helper.make_node("Softmax", ["a"], ["y"]),
            helper.make_node("ReduceSum", ["y", "rows"], ["s"], keepdims=0),
        ]
        shapes = {"x": self.x.shape, "y": (4, 24), "s": (24,)}
        infos = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()}
        graph = helper.make_graph(nodes, "model", [infos["x"]], [infos["y"], infos["s"]], values)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def expected(self) -> list[np.ndarray]:
        """Compute the model in float64."""
        x, kernel = self.x.astype("float64"), self.kernel.astype("float64")
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        y = np.maximum(np.einsum("nchwij,ocij->nohw", windows, kernel), 0).reshape(4, -1)
        y = y @ self.weight.astype("float64") + self.bias
        y = np.exp(y - y.max(-1, keepdims=True))
        y /= y.sum(-1, keepdims=True)
        return [y, y.sum(0)]


@pytest.mark.parametrize("how", ["command line", "tvm.compile"])
def test_a_model_runs_without_python(program: Path, tmp_path: Path, how: str) -> None:
    model = Model()
    if how == "command line":
        onnx.save(model.onnx(), str(tmp_path / "model.onnx"))
        assert cli.main(["compile", str(tmp_path / "model.onnx"), "-q", "-o", str(tmp_path / "out")]) == 0
        path = tmp_path / "out" / "model.so"
        manifest = json.loads((path.parent / "manifest.json").read_text())
        assert [need["name"] for need in manifest["needs"]] == ["libtvm_runtime"]
    else:
        path = tmp_path / "model.so"
        tvm.compile(model.relax(), "llvm", relax_pipeline=pipeline("llvm")).export_library(str(path))
    found = outputs(run(program, tmp_path, path, model.x), tmp_path)
    assert [a.dtype for a in found] == [F32, F32]
    for array, wanted in zip(found, model.expected(), strict=True):
        assert array.shape == wanted.shape
        np.testing.assert_allclose(array, wanted, 1e-5, 1e-7)
    loaded = run(program, tmp_path, path, LD_TRACE_LOADED_OBJECTS="1").stdout
    assert "libtvm_runtime.so" in loaded and "python" not in loaded.replace(str(RUNTIME.parent), "")


@pytest.mark.parametrize("threads", ["1", "4"])
def test_a_library_brings_its_launcher_of_threads(program: Path, tmp_path: Path, threads: str) -> None:
    mod = build(lambda emit, x: R.nn.softmax(x, -1), ((400, 1024), F32))
    path = tmp_path / "model.so"
    tvm.compile(mod, "llvm", relax_pipeline=pipeline("llvm")).export_library(str(path))
    x = np.random.default_rng(3).standard_normal((400, 1024), dtype=F32)
    done = run(program, tmp_path, path, x, TVM_NUM_THREADS=threads, LD_DEBUG="bindings")
    (found,) = outputs(done, tmp_path)
    exp = np.exp(x.astype("float64"))
    np.testing.assert_allclose(found, exp / exp.sum(-1, keepdims=True), 1e-5, 1e-7)
    assert "model.so [0]: normal symbol `tvm_stitch_parallel_launch_1'" in done.stderr


def test_the_program_says_what_is_wrong(program: Path, tmp_path: Path) -> None:
    x = np.ones((2, 2), F32)
    missing = run(program, tmp_path, tmp_path / "none.so", x)
    assert missing.returncode == 1 and "none.so" in missing.stderr
    path = tmp_path / "model.so"
    mod = build(lambda emit, x: R.exp(x), ((2, 3), F32))
    tvm.compile(mod, "llvm", relax_pipeline=pipeline("llvm")).export_library(str(path))
    other = run(program, tmp_path, path, x)
    assert other.returncode == 1 and "shape" in other.stderr
    x.tofile(tmp_path / "x.bin")
    for word, reason in (("x.bin:float32:2,3", "has 16 bytes, its shape and dtype need 24"),
                         ("x.bin:float32:2,-2", "no size of a shape: '-2'"), ("x.bin", "FILE:DTYPE")):  # fmt: skip
        command = [program, path, word]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=BARE, check=False)
        assert done.returncode == 1 and reason in done.stderr
    assert subprocess.run([program], capture_output=True, env=BARE, check=False).returncode == 2


def test_the_least_program_runs(tmp_path: Path) -> None:
    program = built("minimal.cc", tmp_path / "minimal")
    softmax = build(lambda emit, x: R.nn.softmax(x, -1), ((4, 8), F32))
    tvm_stitch.export_library(tvm_stitch.compile(softmax, "llvm"), program.parent / "model.so", "llvm")
    done = subprocess.run(
        [str(program)], cwd=program.parent, env=BARE, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "0.125\n"


def test_the_page_shows_the_least_program() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```cpp\n(.*?)```", page, re.S)
    assert (ROOT / "examples" / "minimal.cc").read_text(encoding="utf-8").endswith(shown)
    code = [
        line
        for line in shown.splitlines()
        if line.strip() and not line.lstrip().startswith(("//", "#include"))
    ]
    assert len(code) <= 20


def test_the_sizes_on_the_page() -> None:
    """Within a fifth: they differ between releases."""
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(lib\w+\.so)` \| ([\d.]+) MB \|$", page, re.M))
    assert len(told) == 4
    for name, size in told.items():
        path = next(p for p in (RUNTIME.with_name(name), FFI.with_name(name)) if p.exists())
        assert path.stat().st_size / 1e6 == pytest.approx(float(size), rel=0.2)


@pytest.mark.parametrize("compiled", [True, False])
def test_the_manifest_names_what_a_gpu_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], compiled: bool
) -> None:
    monkeypatch.setattr(export, "kernel_compiler", lambda: "nvcc" if compiled else None)
    monkeypatch.setattr(export, "_compile", lambda source, target: ("fatbin", b"machine code"))
    onnx.save(Model().onnx(), str(tmp_path / "model.onnx"))
    words = ["--target", "cuda -arch=sm_90", "--config", "compute=libraries", "-q", "--json"]
    assert cli.main(["compile", str(tmp_path / "model.onnx"), *words, "-o", str(tmp_path / "out")]) == 0
    found = {need["name"]: need["how"] for need in json.loads(capfd.readouterr().out)["needs"]}
    assert "nvidia-cublas" in found["cuBLASLt"]
    assert {"libtvm_runtime", "libtvm_runtime_cuda", "CUDA", "cuBLASLt"} <= set(found)
    assert ("Python with TVM" in found) is not compiled
    written = (tmp_path / "out" / "model.so").read_bytes()
    assert (b"machine code" in written) is compiled and (b"__global__" in written) is not compiled
