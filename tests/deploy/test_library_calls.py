# SPDX-License-Identifier: Apache-2.0
"""Libraries bring the calls of cuBLASLt, and say which package is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.deploy.cpp_program import BARE, CUDA, F32, FFI, ROOT, compiler, outputs, run
from tests.graph.helpers import build
from tvm_stitch import StitchConfig
from tvm_stitch.compute.cuda import library
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.lowering.embed_libraries import EmbedLibraries
from tvm_stitch.relax.lowering.needs import needs

ASKED = StitchConfig(compute="libraries")
_STUBS = """
// What the calls of cuBLASLt use of the driver and of the library: all succeeds, a product is 42 in its first element.
#define OK(name) int name() { return 0; }
OK(cuCtxGetDevice) OK(cuDeviceGet) OK(cuDeviceGetName) OK(cuDevicePrimaryCtxRetain) OK(cuCtxPushCurrent_v2)
OK(cuCtxPopCurrent_v2) OK(cuMemsetD8Async) OK(cuMemsetD2D8Async) OK(cuStreamIsCapturing)
OK(cuEventCreate) OK(cuEventDestroy_v2) OK(cuEventRecord)
OK(cuEventSynchronize) OK(cuEventElapsedTime) OK(cublasLtCreate) OK(cublasLtGetVersion) OK(cublasLtGetStatusString)
OK(cublasLtMatmulDescCreate) OK(cublasLtMatmulDescSetAttribute) OK(cublasLtMatmulDescDestroy)
OK(cublasLtMatrixLayoutCreate) OK(cublasLtMatrixLayoutSetAttribute) OK(cublasLtMatrixLayoutDestroy)
OK(cublasLtMatmulPreferenceCreate) OK(cublasLtMatmulPreferenceSetAttribute) OK(cublasLtMatmulPreferenceDestroy)
int cublasLtMatmulAlgoGetHeuristic(void* h, void* o, void* a, void* b, void* c, void* d, void* p, int n, void* r,
                                   int* found) { return *found = 1, 0; }
int cublasLtMatmul(void* h, void* o, void* al, void* a, void* la, void* b, void* lb, void* be, void* c, void* lc,
                   float* d) { return d[0] = 42, 0; }
"""


X, W = np.ones((4, 8), F32), np.ones((8, 5), F32)


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By mode of execution: a library with one product for a GPU and no kernel, whose storage may be a CPU's."""
    compiler()
    mod = build(lambda emit, x, w: R.matmul(x, w), (X.shape, F32), (W.shape, F32))
    found = {}
    for mode in ("bytecode", "compiled"):
        found[mode] = tmp_path_factory.mktemp("product") / "model.so"
        executable = relax.build(mod, CUDA, relax_pipeline=pipeline(CUDA, ASKED), exec_mode=mode)
        executable.export_library(str(found[mode]))
    return found


@pytest.fixture(params=["bytecode", "compiled"])
def product(request: pytest.FixtureRequest, products: dict[str, Path]) -> Path:
    return products[request.param]


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that is taken for the driver and for cuBLASLt."""
    folder = tmp_path_factory.mktemp("stubs")
    (folder / "stubs.c").write_text(_STUBS)
    command = [compiler(), "-x", "c", "-w", "-shared", "-fPIC", "stubs.c", "-o", "libcuda.so.1"]
    subprocess.run(command, cwd=folder, check=True, timeout=60)
    return folder


def test_a_missing_driver_is_told(program: Path, tmp_path: Path, product: Path) -> None:
    done = run(program, tmp_path, product, X, W)
    assert done.returncode == 1 and "tvm_stitch: no CUDA driver: libcuda.so.1" in done.stderr


def test_a_missing_library_is_told_with_its_package(
    program: Path, tmp_path: Path, product: Path, stubs: Path
) -> None:
    for named in ("none", "/no/such/file.so"):
        env = {"LD_LIBRARY_PATH": str(stubs), library.CUBLASLT.variable: named}
        done = run(program, tmp_path, product, X, W, **env)
        assert done.returncode == 1 and named in done.stderr
        assert "tvm_stitch: cuBLASLt cannot be opened: install nvidia-cublas (CUDA 13)" in done.stderr


@pytest.mark.parametrize(
    "where", ["nvidia/cu13/lib/libcublasLt.so.13", "nvidia/cublas/lib/libcublasLt.so.12"]
)
def test_the_library_is_found_beside_tvm(
    program: Path, tmp_path: Path, product: Path, stubs: Path, where: str
) -> None:
    """In the folder of packages that TVM's FFI is loaded from, as pip installs it: nothing is set by hand."""
    place = program.parents[2] / where
    place.parent.mkdir(parents=True)
    shutil.copy(stubs / "libcuda.so.1", place)
    try:
        (found,) = outputs(run(program, tmp_path, product, X, W, LD_LIBRARY_PATH=str(stubs)), tmp_path)
    finally:
        shutil.rmtree(program.parents[2] / "nvidia")
    assert found.shape == (4, 5) and found[0, 0] == 42


_PYTHON = """
import sys, numpy as np, tvm
from tvm import relax
for i, path in enumerate(sys.argv[1:]):
    if i == 4:  # as if another version of the functions were registered
        tvm.register_global_func("tvm_stitch.cublaslt.matmul", lambda *args: print("the registry's"), override=True)
    vm = relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())
    try:
        vm["main"](*(tvm.runtime.tensor(np.ones(shape, "float32")) for shape in ((4, 8), (8, 5))))
    except RuntimeError as error:
        print(str(error).splitlines()[-1])
assert "tvm_stitch" not in sys.modules
"""


def test_models_load_twice_and_where_the_name_is_taken(tmp_path: Path, products: dict[str, Path]) -> None:
    paths = [str(path) for path in products.values()]
    command = [sys.executable, "-c", _PYTHON, *paths, *paths, str(products["bytecode"])]
    done = subprocess.run(
        command, cwd=tmp_path, env=BARE, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 5 and len(set(lines)) == 1 and "tvm_stitch: " in lines[0]


def test_models_load_in_the_process_that_compiled_them(product: Path) -> None:
    for _ in range(2):
        vm = relax.VirtualMachine(tvm.runtime.load_module(str(product)), tvm.cpu())
        with pytest.raises(RuntimeError, match="no CUDA driver|cuBLASLt"):
            vm["main"](tvm.runtime.tensor(X), tvm.runtime.tensor(W))


def test_no_folder_of_this_machine_is_in_a_model(product: Path) -> None:
    bytes_of = product.read_bytes()
    assert b"tvm_stitch.cublaslt.matmul" in bytes_of
    for folder in (ROOT, FFI.parent, Path.home() / ".cache"):
        assert str(folder).encode() not in bytes_of


def test_what_calls_no_library_brings_none() -> None:
    mod = build(lambda emit, x: R.exp(x), (X.shape, F32))
    assert "external_mods" not in (pipeline(CUDA, ASKED)(mod).attrs or {})


def test_a_host_of_another_kind_gets_none() -> None:
    mod = build(lambda emit, x, w: R.matmul(x, w), (X.shape, F32), (W.shape, F32))
    host = {"kind": "llvm", "mtriple": "riscv64-unknown-linux-gnu"}
    other = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host=host)
    lowered = pipeline(CUDA, ASKED)(mod).without_attr("external_mods")
    assert "external_mods" in EmbedLibraries(CUDA)(lowered).attrs
    assert "external_mods" not in (EmbedLibraries(other)(lowered).attrs or {})


def test_functions_that_few_models_call_are_named() -> None:
    sorting = pipeline("llvm")(build(lambda emit, x: R.sort(x, axis=-1), (X.shape, F32)))
    found = [need["name"] for need in needs(sorting, tvm.target.Target("llvm"))]
    assert found == ["libtvm_runtime", "libtvm_runtime_extra"]
