# SPDX-License-Identifier: Apache-2.0
"""Compiled models run in a C++ program without Python, and bring what they call of ours with them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from onnx import TensorProto, helper
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from tests.graph.helpers import build
from tvm_stitch import StitchConfig, cli
from tvm_stitch.compute.cuda import library
from tvm_stitch.deploy import export, native_code
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.lowering.embed_libraries import EmbedLibraries
from tvm_stitch.relax.lowering.needs import needs

ROOT = Path(__file__).resolve().parent.parent
FFI = Path(tvm_ffi.libinfo.find_libtvm_ffi())
RUNTIME = Path(tvm.libinfo.find_libtvm_runtime())
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
ASKED = StitchConfig(compute="libraries")
F32 = "float32"
BARE = {"PATH": os.environ.get("PATH", "")}
"""The environment of a process that finds nothing of this one's Python."""

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


def compiler() -> str:
    try:
        return native_code.compiler("the C++ program")[0]
    except RuntimeError as error:
        pytest.skip(str(error))


def built(source: str, folder: Path) -> Path:
    """An example, in a folder of its own with the two libraries that it is linked against."""
    folder.mkdir(parents=True)
    for needed in (FFI, RUNTIME):
        (folder / needed.name).symlink_to(needed)
    includes = {tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()}
    flags = ["-std=c++17", "-O1", "-Wall", "-Werror", *(f"-isystem{path}" for path in includes)]
    links = [f"-L{folder}", "-Wl,--no-as-needed", "-ltvm_runtime", "-ltvm_ffi", "-ldl", "-Wl,-rpath,$ORIGIN"]
    made = folder / Path(source).stem
    command = [compiler(), *flags, str(ROOT / "examples" / source), *links, "-o", str(made)]
    subprocess.run(command, check=True, timeout=120)
    return made


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program for any model."""
    return built("run_model.cc", tmp_path_factory.mktemp("packages") / "tvm_ffi" / "lib")


def run(
    program: Path, folder: Path, model: Path, *arrays: np.ndarray, cuda: bool = False, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a model on arrays in a folder, from which :func:`outputs` reads."""
    words = []
    for i, array in enumerate(arrays):
        array.tofile(folder / f"input{i}.bin")
        words.append(f"input{i}.bin:{array.dtype}:{','.join(map(str, array.shape))}")
    device = ["--device", "cuda"] if cuda else []
    command = [str(program), *device, os.path.relpath(model, folder), *words]
    return subprocess.run(
        command, cwd=folder, env={**BARE, **env}, capture_output=True, text=True, check=False, timeout=60
    )


def outputs(done: subprocess.CompletedProcess[str], folder: Path) -> list[np.ndarray]:
    assert done.returncode == 0, done.stderr
    found = []
    for line in done.stdout.splitlines():
        name, dtype, shape = line.split(":")
        found.append(np.fromfile(folder / name, dtype).reshape([int(n) for n in shape.split(",") if n]))
    return found


class Model:
    """A convolution, ReLU, a matrix product with a bias, a softmax and sums of its columns; its weights are seeded."""

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
        """In float64."""
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


# -- the calls of cuBLASLt ------------------------------------------------------------------------------------
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


# -- CUDA kernels as machine code -----------------------------------------------------------------------------
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
    """Libraries that are taken for CUDA's: memory is the CPU's, and a launched kernel is told on stderr."""
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
