# SPDX-License-Identifier: Apache-2.0
"""CUDA needs of the toolchain the driver before its stand-in, and compilers for TVM's source."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest
import tvm
from tvm import te

from tvm_relay_toolchain import libraries, stub

from .conftest import Run, has_driver

TARGET = "cuda -arch=sm_80"


def build() -> tvm.runtime.Module:
    """Build a small CUDA module: ``b = a + 1`` over 256 float32 elements."""
    a = te.placeholder((256,), name="a")
    b = te.compute((256,), lambda i: a[i] + 1, name="b")
    schedule = te.create_schedule(b.op)
    block, thread = schedule[b].split(b.op.axis[0], factor=64)
    schedule[b].bind(block, te.thread_axis("blockIdx.x"))
    schedule[b].bind(thread, te.thread_axis("threadIdx.x"))
    return tvm.build(schedule, [a, b], tvm.target.Target(TARGET, host="llvm"))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_nvcc_compiles_a_module() -> None:
    (device,) = build().imported_modules
    assert device.type_key == "cuda"
    assert "__global__" in device.get_source()


def test_nvrtc_compiles_what_tvm_emits() -> None:
    sources: list[str] = []

    def keep(code: str, target: tvm.target.Target) -> str:
        sources.append(code)
        return ".version 8.0\n.target sm_80\n.address_size 64\n"

    before = tvm.get_global_func("tvm_callback_cuda_compile", allow_missing=True)
    tvm.register_func("tvm_callback_cuda_compile", keep, override=True)
    try:
        build()
    finally:
        if before is not None:
            tvm.register_func("tvm_callback_cuda_compile", before, override=True)
    (source,) = sources

    found = libraries.load("libnvrtc.so.12")
    assert found is not None
    nvrtc = ctypes.CDLL(str(found.path))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"k.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=compute_80")
    assert nvrtc.nvrtcCompileProgram(program, 1, options) == 0
    assert nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)) == 0
    text = ctypes.create_string_buffer(size.value)
    assert nvrtc.nvrtcGetPTX(program, text) == 0
    assert b".visible .entry" in text.value


@pytest.mark.skipif(has_driver(), reason="this machine has an NVIDIA driver")
def test_any_driver_goes_before_the_stub(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stub, "MARKER", "cuInit")
    monkeypatch.setattr(stub, "FUNCTIONS", (*stub.FUNCTIONS[:-1], "cuInit"))
    driver = tmp_path / "driver"
    driver.mkdir()
    (driver / "libcuda.so.1").write_bytes(stub.image())
    code = "import tvm\nfrom tvm_relay_toolchain import libraries\nprint(libraries.load_driver())\n"
    done = run(code, LD_LIBRARY_PATH=str(driver))
    assert f"{driver}/libcuda.so.1" in done.stdout and "is_stub=False" in done.stdout, done.stderr
    assert not (tmp_path / ".cache").exists()
