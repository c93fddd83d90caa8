# SPDX-License-Identifier: Apache-2.0
"""Libraries with CUDA kernels as machine code: what is written, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from tests.graph.helpers import build
from tvm_stitch.deploy import export

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
F32 = "float32"


@pytest.fixture(scope="module")
def kernels() -> Any:
    return tvm_stitch.compile(build(lambda emit, x: R.nn.softmax(x, -1), ((8, 64), F32)), CUDA)


def cuda_modules(module: Any) -> list[Any]:
    found = [module] if module.kind == "cuda" else []
    return found + [one for inner in module.imports for one in cuda_modules(inner)]


def test_kernels_are_exchanged_while_the_library_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: Any
) -> None:
    seen = []

    def compiled(source: str, target: Any) -> tuple[str, bytes]:
        seen.append((source, str(target.arch)))
        return "cubin", b"machine code"

    monkeypatch.setattr(export, "_compile", compiled)
    tvm_stitch.export_library(kernels, tmp_path / "model.so", CUDA)
    ((source, arch),) = seen
    assert "__global__" in source and arch == "sm_90"
    written = (tmp_path / "model.so").read_bytes()
    # The format, then how kernels are launched, then the code.
    assert b"\5\0\0\0\0\0\0\0cubin" in written and b"\x0c\0\0\0\0\0\0\0machine code" in written
    assert b"threadIdx.x" in written and b"__global__" not in written
    (left,) = cuda_modules(kernels.mod)
    assert left.inspect_source() == source, "the executable is what it was"
    kernels.export_library(str(tmp_path / "source.so"))
    assert b"__global__" in (tmp_path / "source.so").read_bytes()


def test_a_failed_export_leaves_the_executable_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: Any
) -> None:
    monkeypatch.setattr(export, "_compile", lambda source, target: ("cubin", b"machine code"))

    def linked(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        tvm_stitch.export_library(kernels, tmp_path / "model.so", CUDA, fcompile=linked)
    assert "__global__" in cuda_modules(kernels.mod)[0].inspect_source()


def test_a_target_without_the_kernels_is_refused(tmp_path: Path, kernels: Any) -> None:
    with pytest.raises(ValueError, match="the model has CUDA kernels, target='llvm' has none"):
        tvm_stitch.export_library(kernels, tmp_path / "model.so", "llvm")
    assert not (tmp_path / "model.so").exists()


def test_a_missing_cuda_compiler_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: Any
) -> None:
    monkeypatch.setattr(export, "kernel_compiler", lambda: None)
    with pytest.raises(RuntimeError, match="nothing here compiles CUDA kernels: install nvcc"):
        tvm_stitch.export_library(kernels, tmp_path / "model.so", CUDA)


def test_what_compiles_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(export.COMPILER_VARIABLE, raising=False)
    monkeypatch.setattr(export.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert export.kernel_compiler() is None
    monkeypatch.setattr(export.importlib.util, "find_spec", lambda name: object())
    assert export.kernel_compiler() == "nvrtc"
    (tmp_path / "nvcc").write_text("")
    (tmp_path / "nvcc").chmod(0o700)
    assert export.kernel_compiler() == "nvcc"
    monkeypatch.setenv(export.COMPILER_VARIABLE, "nvrtc")
    assert export.kernel_compiler() == "nvrtc"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_nvcc_compiles_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: Any) -> None:
    monkeypatch.setenv(export.COMPILER_VARIABLE, "nvcc")
    tvm_stitch.export_library(kernels, tmp_path / "model.so", CUDA)
    written = (tmp_path / "model.so").read_bytes()
    assert b"\6\0\0\0\0\0\0\0fatbin" in written and b"__global__" not in written


def test_a_cpu_needs_no_such_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "kernel_compiler", lambda: None)
    x = np.random.default_rng(0).standard_normal((4, 8), dtype=F32)
    executable = tvm_stitch.compile(build(lambda emit, x: R.exp(x), (x.shape, F32)))
    tvm_stitch.export_library(executable, tmp_path / "model.so")
    vm = relax.VirtualMachine(tvm.runtime.load_module(str(tmp_path / "model.so")), tvm.cpu())
    np.testing.assert_allclose(vm["main"](tvm.runtime.tensor(x)).numpy(), np.exp(x), 1e-6)


def test_what_is_no_compiled_model_is_refused(tmp_path: Path) -> None:
    mod = build(lambda emit, x: R.exp(x), ((4, 8), F32))
    for given, named in ((mod, "IRModule"), (None, "NoneType"), ("model.so", "str")):
        with pytest.raises(TypeError, match=f"what tvm_stitch.compile or tvm.compile returns, not {named}"):
            tvm_stitch.export_library(given, tmp_path / "model.so")


def test_paths_that_cannot_be_written_are_refused_before_kernels_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: Any
) -> None:
    monkeypatch.setattr(export, "_compile", lambda *_: pytest.fail("compiled first"))
    with pytest.raises(FileNotFoundError, match="no folder .*none to write model.so to"):
        tvm_stitch.export_library(kernels, tmp_path / "none" / "model.so", CUDA)
    with pytest.raises(IsADirectoryError, match="is a folder; give the path of a file"):
        tvm_stitch.export_library(kernels, tmp_path, CUDA)
    monkeypatch.setattr(export.os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(PermissionError, match="model.so cannot be written"):
        tvm_stitch.export_library(kernels, tmp_path / "model.so", CUDA)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "{source}\nCompilation error:\nk.cu(3): error: bad\n  int x;\n1 error detected\n",
            "k.cu(3): error: bad; 1 error detected",
        ),
        (
            "{source}\nCompilation error:\nnvcc fatal   : Unsupported gpu architecture",
            "nvcc fatal   : Unsupported gpu architecture",
        ),
        ("NVRTC compilation failed:\nk.cu(3): error: worse", "k.cu(3): error: worse"),
        ("no space left on device", "no space left on device"),
    ],
)
def test_what_the_compiler_says_comes_without_the_source(
    said: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: Any
) -> None:
    from tvm.support import nvcc

    def rejected(source: str, **_: object) -> bytes:
        raise RuntimeError(said.format(source=source))

    monkeypatch.setenv(export.COMPILER_VARIABLE, "nvcc")
    monkeypatch.setattr(nvcc, "compile_cuda", rejected)
    with pytest.raises(RuntimeError) as caught:
        tvm_stitch.export_library(kernels, tmp_path / "model.so", CUDA)
    assert str(caught.value) == f"nvcc rejects the kernels: {expected}"
    assert not (tmp_path / "model.so").exists()
