# SPDX-License-Identifier: Apache-2.0
"""Libraries bring CUDA kernels as machine code, so that no Python compiles them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm.relax import op as R

import tvm_stitch
from tests.deploy.cpp_program import CUDA, F32, RUNTIME, compiler, run
from tests.graph.helpers import build
from tvm_stitch.deploy import export


@pytest.fixture(scope="module")
def kernels() -> Any:
    compiler()
    return tvm_stitch.compile(build(lambda emit, x: R.nn.softmax(x, -1), ((8, 64), F32)), CUDA)


_FAKE_CUDART = """
#include <stdlib.h>
#include <string.h>
int cudaMalloc(void** p, size_t n) { return (*p = malloc(n)) == 0; }
int cudaFree(void* p) { return free(p), 0; }
int cudaMemcpyAsync(void* to, const void* from, size_t n, int k, void* s) { return memcpy(to, from, n), 0; }
int cudaGetDeviceCount(int* n) { return *n = 1, 0; }
int cudaGetDevice(int* n) { return *n = 0; }
int cudaDeviceGetAttribute(int* value, int attribute, int device) { return *value = 132, 0; }
"""
_FAKE_DRIVER = """
#include <stdio.h>
int cuModuleLoadData(void** m, const void* code) { return fprintf(stderr, "code: %.12s\\n", code), *m = "", 0; }
int cuModuleGetFunction(void** f, void* m, const char* name) { return *f = (void*)name, 0; }
int cuLaunchKernelEx(const void* c, void* f, void** p, void** e) { return fprintf(stderr, "launched %s\\n", f), 0; }
"""


@pytest.fixture(scope="module")
def fake_cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Libraries that are taken for CUDA's. Memory is the CPU's, and a launched kernel is reported on stderr."""
    runtime = RUNTIME.with_name("libtvm_runtime_cuda.so")
    if not runtime.exists():
        pytest.skip("this TVM has no CUDA runtime")
    nm = ["nm", "-D", "--undefined-only", str(runtime)]
    listed = subprocess.run(nm, check=True, capture_output=True, text=True).stdout
    wanted = set(re.findall(r" U (cu(?:da)?[A-Z]\w+)", listed))
    (named,) = set(re.findall(r"@(libcudart\.so\.\d+)", listed))
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "version").write_text(f"{named} {{ global: *; }};")
    for name, source, prefix, flags in ((named, _FAKE_CUDART, "cuda", ["-Wl,--version-script=version"]),
                                        ("libcuda.so.1", _FAKE_DRIVER, "cu", [])):  # fmt: skip
        own = {n for n in wanted if n.startswith("cuda") == (prefix == "cuda") and f"int {n}(" not in source}
        (folder / "fake.c").write_text(source + "".join(f"int {n}() {{ return 0; }}\n" for n in sorted(own)))
        made = [f"-Wl,-soname,{name}", *flags, "fake.c", "-o", name]
        subprocess.run([compiler(), "-x", "c", "-w", "-shared", "-fPIC", *made], cwd=folder, check=True)
    (folder / runtime.name).symlink_to(runtime)
    return folder


@pytest.mark.parametrize("compiled", [True, False])
def test_compiled_kernels_need_no_python(
    program: Path,
    fake_cuda: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kernels: Any,
    compiled: bool,
) -> None:
    path = tmp_path / "model.so"
    if compiled:
        monkeypatch.setattr(export, "_compile", lambda source, target: ("cubin", b"machine code"))
        tvm_stitch.export_library(kernels, path, CUDA)
    else:
        kernels.export_library(str(path))
    done = run(program, tmp_path, path, np.ones((8, 64), F32), cuda=True, LD_LIBRARY_PATH=str(fake_cuda))
    if compiled:
        assert done.returncode == 0, done.stderr
        assert done.stderr == "code: machine code\nlaunched stitch_softmax_kernel\n"
    else:
        assert done.returncode == 1 and "tvm_callback_cuda_compile" in done.stderr
