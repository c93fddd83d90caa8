# SPDX-License-Identifier: Apache-2.0
"""cuBLASLt is found where it may lie, the calls of it compile without it, and what is missing is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi

from tvm_stitch.compute.cuda import library

ALONE = {**os.environ, "LD_LIBRARY_PATH": ""}


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(library.LIBRARY_VARIABLE, raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(library, "_ON_SYSTEMS", ())
    monkeypatch.setattr(library, "_loaded", [])
    monkeypatch.setattr(library, "_places", lambda package: [])


def placed(folder: Path, name: str = "libcublasLt.so.12") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("")
    return folder / name


@pytest.mark.parametrize("folder", ["nvidia/cu13/lib", "nvidia/cublas/lib", "torch/lib"])
def test_wheels_are_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str) -> None:
    monkeypatch.setattr(
        library, "_places", lambda package: [tmp_path] if package == folder.split("/")[0] else []
    )
    assert library.find() is None
    assert placed(tmp_path / folder) == library.find()


@pytest.mark.parametrize("variable", ["LD_LIBRARY_PATH", "CUDA_HOME"])
def test_the_system_is_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str) -> None:
    where = tmp_path / "lib64"
    monkeypatch.setenv(variable, str(where if variable == "LD_LIBRARY_PATH" else tmp_path))
    assert placed(where) == library.find()


def test_the_newer_library_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{old}:{new}")
    placed(old)
    assert placed(new, "libcublasLt.so.13") == library.find()


def test_a_named_library_is_the_only_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    placed(tmp_path)
    monkeypatch.setenv(library.LIBRARY_VARIABLE, "none")
    assert library.find() is None
    assert "is not installed" in str(library.missing())
    monkeypatch.setenv(library.LIBRARY_VARIABLE, str(tmp_path / "not there"))
    assert library.missing() == f"TVM_STITCH_CUBLASLT names no library: {tmp_path / 'not there'}"
    mine = placed(tmp_path, "mine.so")
    monkeypatch.setenv(library.LIBRARY_VARIABLE, str(mine))
    assert library.find() == mine


def test_what_is_missing_is_told() -> None:
    assert library.missing() == (
        "cuBLASLt is not installed (pip install nvidia-cublas, or nvidia-cublas-cu12 for CUDA 12)"
    )
    with pytest.raises(RuntimeError, match="cuBLASLt is not installed"):
        library.load()


def test_a_missing_compiler_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(library.LIBRARY_VARIABLE, str(placed(tmp_path)))
    monkeypatch.setattr(library, "_compiled_path", lambda: tmp_path / "not compiled")
    monkeypatch.setenv("CXX", "no-such-compiler")
    library.compiler.cache_clear()
    try:
        reason = library.missing()
    finally:
        library.compiler.cache_clear()
    assert reason and "C++ compiler" in reason and "no-such-compiler was not found" in reason


def test_what_is_no_library_does_not_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(library.LIBRARY_VARIABLE, str(placed(tmp_path)))
    with pytest.raises(RuntimeError, match="tvm_stitch: cuBLASLt cannot be opened"):
        library.load()
    assert not library._loaded


def test_the_calls_compile_and_say_what_they_lack() -> None:
    """In a process of its own: the functions stay in the registry."""
    code = (
        "import numpy as np, tvm, tvm_ffi\n"
        "from tvm_stitch.compute.cuda import library\n"
        "library.register(); library.register()\n"
        "a = tvm.runtime.tensor(np.ones((2, 2), 'float32'))\n"
        "f = tvm.get_global_func(library.MATMUL)\n"
        "for mode in ('', 'gelu'):\n"
        "    try:\n"
        "        f(a, a, tvm_ffi.Shape([2, 2, 2, 1, 2, 2, 2, 0, 0, 0]), mode, a, a)\n"
        "    except Exception as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ALONE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "tvm_stitch: no CUDA driver" in done.stdout or "cuBLASLt" in done.stdout
    assert "tvm_stitch: no mode of a product: gelu" in done.stdout


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
    library.register()
    a = tvm.runtime.tensor(np.ones((2, 2), "float32"))
    with pytest.raises(Exception, match=reason):
        tvm.get_global_func(library.MATMUL)(a, a, tvm_ffi.Shape(numbers), mode, a, a)


def test_products_without_elements_need_no_library() -> None:
    library.register()
    a = tvm.runtime.tensor(np.ones((0, 2), "float32"))
    tvm.get_global_func(library.MATMUL)(a, a, tvm_ffi.Shape([0, 0, 2, 1, 2, 2, 0, 0, 0, 0]), "", a, a)
