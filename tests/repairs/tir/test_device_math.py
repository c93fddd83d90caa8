# SPDX-License-Identifier: Apache-2.0
"""Functions of float32 in kernels for a GPU, of which its fast mathematics makes too little."""

from __future__ import annotations

import ctypes
import math
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.support import nvcc

from cuda_emulator import run_cuda
from tests.graph.helpers import build, cuda_source
from tests.repairs import faults
from tvm_stitch import StitchConfig
from tvm_stitch.relax import pipeline
from tvm_stitch.repairs.tir.device_math import FUNCTIONS, device_name

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
VALUES = [-np.inf, -3.4e38, -7.5, -3, -2, -1, -0.5, -0.0, 0.0, 0.5, 1, 2, 3, 7.5, 3.4e38, np.inf, np.nan]


def module(shape: tuple[int, ...], dtype: str) -> tvm.IRModule:
    """x to the power of y, and to that of 3."""
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType(shape, dtype)) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            calls = [relax.op.power(x, y), relax.op.power(x, relax.const(3.0, dtype))]
            outputs = [builder.emit_output(builder.emit(c)) for c in calls]
        builder.emit_func_output(relax.Tuple(outputs))
    return builder.get()


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The device functions on the host, with what ``--use_fast_math`` makes of expf and powf at least."""
    folder = tmp_path_factory.mktemp("device_math")
    host = """
#include <cmath>
#include <cstring>
#define __forceinline__
#define __device__ extern "C"
static int __float_as_int(float x) { int i; std::memcpy(&i, &x, 4); return i; }
static float __int_as_float(int i) { float x; std::memcpy(&x, &i, 4); return x; }
#define powf(x, y) exp2f((y) * log2f(x))
#define expf(x) exp2f((x) * 1.44269504f)
"""
    (folder / "math.cc").write_text(host + "".join(FUNCTIONS.values()))
    command = [os.environ.get("CXX", "g++"), "-shared", "-fPIC", "-o", folder / "math.so", folder / "math.cc"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "math.so"))


def exact_function(name: str) -> Any:
    return EXACT.get(name) or getattr(np, name)


def called(device: ctypes.CDLL, name: str, *operands: np.ndarray) -> np.ndarray:
    function = getattr(device, device_name(name))
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float] * len(operands)
    return np.array([function(*each) for each in zip(*operands)], "float32")


def test_powers_hold_with_fast_mathematics(device: ctypes.CDLL) -> None:
    x, y = (v.ravel() for v in np.meshgrid(np.float32(VALUES), np.float32(VALUES)))
    got = called(device, "pow", x, y)
    with np.errstate(all="ignore"):
        want = np.power(x.astype("float64"), y.astype("float64")).astype("float32")
    np.testing.assert_allclose(got, want, rtol=1e-4)
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(want[want == 0]))


SPECIAL = [1e-45, 1e-40, 0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 3.4e38, -3.4e38, 1.2e-38]
EXACT = {"erf": np.vectorize(math.erf, otypes=["float64"])}
"""Functions that NumPy does not have, in float64."""
RANGES = {  # exponents of two of the operands, and the greatest error in last places
    "tanh": (-20, 6, 6.0),
    "sin": (-20, 128, 2.0),
    "cos": (-20, 128, 2.0),
    "tan": (-20, 128, 4.0),
    "erf": (-100, 6, 8.0),
    "log": (-120, 120, 3.0),
    "log2": (-120, 120, 4.0),
    "log10": (-120, 120, 4.0),
}


@pytest.mark.parametrize("name", RANGES)
def test_functions_are_right_to_a_few_last_places(device: ctypes.CDLL, name: str) -> None:
    least, most, places = RANGES[name]
    rng = np.random.default_rng()
    size = np.exp2(rng.uniform(least, most, 20000))
    near = 1 + rng.uniform(-0.3, 0.3, 20000)
    x = np.concatenate([size, near]).astype("float32")
    if not name.startswith("log"):
        x = x * rng.choice(np.float32([-1, 1]), x.size)
    got, exact = called(device, name, x).astype("float64"), exact_function(name)(x.astype("float64"))
    # If a sum of a sine's or logarithm's parts cancels, its last digit is that of what was added.
    # The logarithm of 1 is 0.
    scale = np.maximum(np.abs(exact), 2.0**-24 * np.abs(exact).max() if name == "tan" else 2.0**-149)
    assert (np.abs(got - exact) / (scale * 2.0**-23)).max() < places


@pytest.mark.parametrize("name", RANGES)
def test_functions_of_special_values(device: ctypes.CDLL, name: str) -> None:
    x = np.float32(SPECIAL)
    with np.errstate(all="ignore"):
        want = exact_function(name)(x.astype("float64"))
    np.testing.assert_allclose(called(device, name, x), want, rtol=1e-6, atol=2.0**-149)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["tanh", "sin", "cos", "tan", "log", "erf"])
def test_kernels_compute_them_in_float32(name: str, dtype: str) -> None:
    half = {"float16": "float16", "bfloat16": ml_dtypes.bfloat16, "float32": "float32"}[dtype]
    x = np.abs(np.random.default_rng().standard_normal(500) * 20).astype(half) + np.asarray(0.5, half)
    builder = relax.BlockBuilder()
    var = relax.Var("x", relax.TensorType(x.shape, dtype))
    with builder.function("main", [var]):
        with builder.dataflow():
            output = builder.emit_output(builder.emit(getattr(relax.op, name)(var)))
        builder.emit_func_output(output)
    run = run_cuda(builder.get(), [x], target=CUDA, relax_pipeline=pipeline(CUDA)).check()
    want = exact_function(name)(x.astype("float64"))
    tolerance = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    np.testing.assert_allclose(run.outputs[0].astype("float64"), want, rtol=tolerance, atol=tolerance * 1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_powers_of_special_values(dtype: str) -> None:
    x, y = (v.ravel() for v in np.meshgrid(np.float32(VALUES), np.float32(VALUES)))
    with np.errstate(all="ignore"):
        x, y = x.astype(dtype), y.astype(dtype)
        mod = module(x.shape, dtype)
        passes = pipeline(CUDA, StitchConfig(strict=True))
        run = run_cuda(mod, [x, y], target=CUDA, relax_pipeline=passes).check()
        for got, exponent in zip(run.outputs, (y, 3.0)):
            want = np.power(x.astype("float64"), np.asarray(exponent, "float64")).astype(dtype)
            np.testing.assert_allclose(got, want, rtol=2e-3 if dtype == "float16" else 1e-5)


def test_kernels_call_the_function() -> None:
    executable = tvm.compile(module((64,), "float32"), CUDA, relax_pipeline=pipeline(CUDA))
    found, left = "", [executable.mod]
    while left:
        built = left.pop()
        left.extend(built.imports)
        found += str(built.inspect_source()) if built.kind == "cuda" else ""
    assert FUNCTIONS["pow"].strip() in found
    assert found.count("powf(") == 1 and found.count(f"{device_name('pow')}(") > 1


def test_what_several_read_is_called_once() -> None:
    """A device function is as heavy as the call that it replaces."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([64], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            t = builder.emit(relax.op.tanh(x))
            both = builder.emit(
                relax.op.add(builder.emit(relax.op.multiply(t, t)), builder.emit(relax.op.exp(t)))
            )
            output = builder.emit_output(both)
        builder.emit_func_output(output)
    calls = re.findall(rf"{device_name('tanh')}\((?!float)([^)]*)\)", cuda_source(builder.get()))
    assert calls and len(set(calls)) == len(calls)


def of_tanh(passes: Any) -> str:
    return faults.source(build(lambda emit, x: R.tanh(x), ((4,), "float32")), passes)


def test_fault() -> None:
    compiler = Path(nvcc.__file__).read_text()
    faults.needed("--use_fast_math" in compiler and " tanhf(" in of_tanh(None), "tir/device_math.py")


def test_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_name("tanh") in of_tanh(faults.ours(CUDA)) and " tanhf(" not in of_tanh(faults.ours(CUDA))
    monkeypatch.setattr(faults.module_of("repairs.tir.arithmetic"), "FUNCTIONS", {})
    assert " tanhf(" in of_tanh(faults.ours(CUDA))
