# SPDX-License-Identifier: Apache-2.0
"""Powers of negative bases in kernels for a GPU, whose fast mathematics knows none."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_stitch import StitchConfig
from tvm_stitch.codegen.signed_power import FUNCTION, POWER
from tvm_stitch.relax import pipeline
from tvm_stitch.testing.emulator import run_cuda

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


def fast(folder: Path) -> ctypes.CDLL:
    """The device function on the host, with what ``--use_fast_math`` makes of powf."""
    host = """
#include <cmath>
#include <cstring>
#define __forceinline__
#define __device__ extern "C"
static int __float_as_int(float x) { int i; std::memcpy(&i, &x, 4); return i; }
static float __int_as_float(int i) { float x; std::memcpy(&x, &i, 4); return x; }
#define powf(x, y) exp2f((y) * log2f(x))
"""
    command = os.environ.get("CXX", "g++")
    (folder / "power.cc").write_text(host + FUNCTION)
    subprocess.run([command, "-shared", "-fPIC", "-o", folder / "power.so", folder / "power.cc"], check=True)
    return ctypes.CDLL(str(folder / "power.so"))


def test_the_function_holds_with_fast_mathematics(tmp_path: Path) -> None:
    power = getattr(fast(tmp_path), POWER)
    power.restype, power.argtypes = ctypes.c_float, [ctypes.c_float] * 2
    x, y = (v.ravel() for v in np.meshgrid(np.float32(VALUES), np.float32(VALUES)))
    got = np.array([power(a, b) for a, b in zip(x, y)], "float32")
    with np.errstate(all="ignore"):
        want = np.power(x.astype("float64"), y.astype("float64")).astype("float32")
    np.testing.assert_allclose(got, want, rtol=1e-4)
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(want[want == 0]))


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
    assert FUNCTION.strip() in found
    assert found.count("powf(") == 1 and found.count(f"{POWER}(") > 1
