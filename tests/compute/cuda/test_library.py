# SPDX-License-Identifier: Apache-2.0
"""cuBLASLt is found in each of its folders, the calls of it compile without it, and an error names missing parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi

from tvm_stitch.compute.cuda import library, shared_library
from tvm_stitch.deploy import embedded


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(library.CUBLASLT.variable, raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(shared_library, "_ON_SYSTEMS", ())
    monkeypatch.setattr(library.CUBLASLT, "opened", False)
    monkeypatch.setattr(shared_library, "_places", lambda package: [])


def placed(folder: Path, name: str = "libcublasLt.so.12") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("")
    return folder / name


@pytest.mark.parametrize("folder", ["nvidia/cu13/lib", "nvidia/cublas/lib", "torch/lib"])
def test_wheels_are_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str) -> None:
    monkeypatch.setattr(
        shared_library, "_places", lambda package: [tmp_path] if package == folder.split("/")[0] else []
    )
    assert library.CUBLASLT.find() is None
    assert placed(tmp_path / folder) == library.CUBLASLT.find()


@pytest.mark.parametrize("variable", ["LD_LIBRARY_PATH", "CUDA_HOME"])
def test_the_system_is_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str) -> None:
    where = tmp_path / "lib64"
    monkeypatch.setenv(variable, str(where if variable == "LD_LIBRARY_PATH" else tmp_path))
    assert placed(where) == library.CUBLASLT.find()


def test_the_newer_library_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{old}:{new}")
    placed(old)
    assert placed(new, "libcublasLt.so.13") == library.CUBLASLT.find()


def test_a_named_library_is_the_only_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    placed(tmp_path)
    monkeypatch.setenv(library.CUBLASLT.variable, "none")
    assert library.CUBLASLT.find() is None
    assert "is not installed" in str(library.CUBLASLT.missing())
    monkeypatch.setenv(library.CUBLASLT.variable, str(tmp_path / "not there"))
    assert library.CUBLASLT.missing() == f"TVM_STITCH_CUBLASLT names no library: {tmp_path / 'not there'}"
    mine = placed(tmp_path, "mine.so")
    monkeypatch.setenv(library.CUBLASLT.variable, str(mine))
    assert library.CUBLASLT.find() == mine


def test_what_is_missing_is_told() -> None:
    assert library.CUBLASLT.missing() == (
        "cuBLASLt is not installed (pip install nvidia-cublas, or nvidia-cublas-cu12 for CUDA 12)"
    )
    with pytest.raises(RuntimeError, match="cuBLASLt is not installed"):
        library.CUBLASLT.load()


def test_a_missing_compiler_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(library.CUBLASLT.variable, str(placed(tmp_path)))
    (tmp_path / "other.cc").write_text("// not compiled yet")
    monkeypatch.setattr(
        library.CUBLASLT, "calls", embedded.Embedded(tmp_path / "other.cc", "calls of cuBLASLt")
    )
    monkeypatch.setenv("CXX", "no-such-compiler")
    embedded.compiler.cache_clear()
    try:
        reason = library.CUBLASLT.missing()
        with pytest.raises(RuntimeError, match="no-such-compiler was not found"):
            library.CUBLASLT.calls.module()
    finally:
        embedded.compiler.cache_clear()
    assert reason == library.CUBLASLT.calls.needs()
    assert reason and "C++ compiler" in reason and "no-such-compiler was not found" in reason


def test_what_is_no_library_does_not_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(library.CUBLASLT.variable, str(placed(tmp_path)))
    with pytest.raises(RuntimeError, match="tvm_stitch: cuBLASLt cannot be opened"):
        library.CUBLASLT.load()
    assert not library.CUBLASLT.opened


def test_the_calls_compile_and_say_what_they_lack() -> None:
    a = tvm.runtime.tensor(np.ones((2, 2), "float32"))
    numbers = tvm_ffi.Shape([2, 2, 2, 1, 2, 2, 2, 0, 0, 0])
    with pytest.raises(RuntimeError, match="tvm_stitch: (no CUDA driver|cuBLASLt)"):
        library.CUBLASLT.calls.module()[library.CUBLASLT.function](a, a, numbers, "", a, a)
    with pytest.raises(ValueError, match="tvm_stitch: no mode of a product: gelu"):
        library.CUBLASLT.calls.module()[library.CUBLASLT.function](a, a, numbers, "gelu", a, a)


@pytest.mark.parametrize(
    ("numbers", "mode", "reason"),
    [
        ([2, 2, 2, 1, 2, 2], "", "a product has 10 numbers"),
        ([3, 2, 2, 1, 2, 2, 2, 0, 0, 0], "", "the result of a product has 4 elements, its layout needs 6"),
        ([2, 2, 2, 2, 2, 2, 2, 0, 0, 1], "", "the result of a product has 4 elements, its layout needs 5"),
        ([2, 2, 2, 1, 2, 2, 2, 0, 0, 0], "bias", "the mode of a product names other operands"),
    ],
)
def test_wrong_calls_are_refused(numbers: list[int], mode: str, reason: str) -> None:
    a = tvm.runtime.tensor(np.ones((2, 2), "float32"))
    with pytest.raises(Exception, match=reason):
        library.CUBLASLT.calls.module()[library.CUBLASLT.function](a, a, tvm_ffi.Shape(numbers), mode, a, a)


def test_products_without_elements_need_no_library() -> None:
    a = tvm.runtime.tensor(np.ones((0, 2), "float32"))
    library.CUBLASLT.calls.module()[library.CUBLASLT.function](
        a, a, tvm_ffi.Shape([0, 0, 2, 1, 2, 2, 0, 0, 0, 0]), "", a, a
    )
