# SPDX-License-Identifier: Apache-2.0
"""Operators left to TVM compute floats as IEEE says, and small integers wrap, on both targets."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import tirx as T

from cuda_emulator import lower, run_lowered
from tests.graph.helpers import build, symbol
from tests.repairs import faults
from tvm_stitch.relax import pipeline as stitching_pipeline
from tvm_stitch.repairs.schedule.sound_arithmetic import SoundArithmetic
from tvm_stitch.repairs.tir.device_math import device_name

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
X = np.array([1.0, np.nan, np.inf, -0.0], "float32")


def left_to_tvm(target: tvm.target.Target) -> Any:
    """TVM's own pipeline, with the rule before its schedules."""
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
    ]
    passes += [relax.transform.FuseTIR(), SoundArithmetic(on_device=target.kind.name == "cuda")]
    return tvm.transform.Sequential([*passes, relax.get_default_pipeline(target)])


def run_on_cpu(mod: tvm.IRModule, x: np.ndarray) -> list[np.ndarray]:
    target = tvm.target.Target("llvm")
    vm = relax.VirtualMachine(tvm.compile(mod, target, relax_pipeline=left_to_tvm(target)), tvm.cpu())
    return [r.numpy() for r in vm["main"](tvm.runtime.tensor(x))]


def model(emit: Any, x: Any) -> list[Any]:
    chosen = emit(R.where(emit(R.greater(x, x)), x, x))
    return [R.equal(chosen, chosen), R.not_equal(chosen, chosen), R.logical_not(emit(R.less(chosen, x)))]


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
def test_nan_equals_nothing(kind: str) -> None:
    mod = build(model, ((4,), "float32"))
    if kind == "llvm":
        results = run_on_cpu(mod, X)
    else:
        results = run_lowered(lower(mod, CUDA, left_to_tvm(CUDA)), [X]).outputs
    for result, expected in zip(results, (X == X, X != X, ~(X < X))):
        np.testing.assert_array_equal(result, expected)


def small(emit: Any, x: Any) -> list[Any]:
    return [R.min(emit(R.bitwise_not(x)), 0), R.max(emit(R.astype(emit(R.add(x, x)), "float32")), 0)]


def test_small_integers_wrap_in_reductions() -> None:
    x = np.arange(60000, 60009, dtype="uint16")
    mod = build(small, ((symbol("n"),), "uint16"))
    least, most = run_lowered(lower(mod, CUDA, left_to_tvm(CUDA)), [x]).outputs
    assert least == (~x).min() and most == (x + x).max()


@T.prim_func(s_tir=True)
def integers(x: T.Buffer((4,), "int32"), y: T.Buffer((4,), "bool")):
    for i in range(4):
        with T.sblock("same"):
            v = T.axis.spatial(4, i)
            y[v] = x[v] == x[v]


def test_comparisons_of_wide_integers_stay() -> None:
    mod = tvm.IRModule({"main": integers.with_attr("global_symbol", "main")})
    assert SoundArithmetic(on_device=True)(mod).same_as(mod)


def extrema(emit: Any, x: Any) -> list[Any]:
    half = emit(R.astype(x, "float16"))
    return [R.maximum(x, emit(R.flip(x, 0))), R.minimum(emit(R.flip(half, 0)), half), R.nn.relu(x)]


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
def test_maxima_and_minima_propagate_nan(kind: str) -> None:
    mod = build(extrema, ((4,), "float32"))
    if kind == "llvm":
        results = run_on_cpu(mod, X)
    else:
        results = run_lowered(lower(mod, CUDA, left_to_tvm(CUDA)), [X]).outputs
    half = X.astype("float16")
    expected = np.maximum(X, X[::-1]), np.minimum(half, half[::-1]), np.maximum(X, 0)
    for result, wanted in zip(results, expected):
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("first", [0, 3])
def test_reductions_on_a_cpu_propagate_nan(first: int) -> None:
    x = np.roll(X, first)
    results = run_on_cpu(build(lambda emit, x: [R.max(x, 0), R.min(x, 0)], ((4,), "float32")), x)
    assert all(map(np.isnan, results))


def rounded(emit: Any, x: Any) -> list[Any]:
    return [R.astype(x, "bfloat16"), R.negative(x)]


@pytest.mark.parametrize("bits", [0xFFFFFFFF, 0x7FFFFFFF, 0x7F800001, 0x7FC00000])
def test_every_nan_is_one_as_bfloat16(bits: int) -> None:
    x = np.array([1, bits, 0x3F800000], "uint32").view("float32")
    result, _ = run_on_cpu(build(rounded, ((3,), "float32")), x)
    wide = result.astype("float32")
    assert np.isnan(wide[1]) and wide[2] == 1


def functions(emit: Any, x: Any) -> list[Any]:
    computed = emit(R.negative(x))
    return [R.tanh(x), R.atanh(x), R.tanh(computed), R.atanh(computed)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_operands_near_zero_keep_their_digits(dtype: str) -> None:
    x = np.array([1e-4, -0.0026, 0.0, -0.0, 0.3, np.nan], dtype)
    results = run_on_cpu(build(functions, ((6,), dtype)), x)
    wide = x.astype("float64")
    expected = [np.tanh(wide), np.arctanh(wide), np.tanh(-wide), np.arctanh(-wide)]
    for result, wanted in zip(results, expected, strict=True):
        found = result.astype("float64")
        np.testing.assert_allclose(found, wanted, rtol=4 * float(ml_dtypes.finfo(dtype).eps), atol=0)
        np.testing.assert_array_equal(np.signbit(found[:5]), np.signbit(wanted[:5]))


def device_functions(emit: Any, x: Any) -> list[Any]:
    angle = emit(R.multiply(x, relax.const(40.0)))
    return [f(x) for f in (R.tanh, R.log)] + [f(angle) for f in (R.sin, R.cos, R.tan)]


def test_functions_on_a_device_are_not_the_fast_ones() -> None:
    x = np.array([1e-4, 0.999, 1.0001, 7.25], "float32")
    lowered = lower(build(device_functions, ((4,), "float32")), CUDA, left_to_tvm(CUDA))
    for name in ("tanh", "log", "sin", "cos", "tan"):
        assert f"{device_name(name)}(" in lowered.source and f" {name}f(" not in lowered.source
    wide = x.astype("float64")
    angle = (x * np.float32(40)).astype("float64")
    expected = [np.tanh(wide), np.log(wide), np.sin(angle), np.cos(angle), np.tan(angle)]
    for result, wanted in zip(run_lowered(lowered, [x]).outputs, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-6, atol=0)


def test_a_kernel_beside_a_concatenation_keeps_its_digits() -> None:
    """The pipeline leaves what feeds a long concatenation to TVM."""

    def cells(emit: Any, x: Any) -> list[Any]:
        parts = [emit(R.tanh(emit(R.multiply(x, relax.const(0.1 * i))))) for i in range(9)]
        return [R.concat(parts, axis=0)]

    source = lower(build(cells, ((4, 8), "float32")), CUDA, stitching_pipeline(CUDA)).source
    assert f"{device_name('tanh')}(" in source and " tanhf(" not in source


def is_less_denied(passes: Any) -> bool:
    """Return whether ``not NaN < 1`` is true, in a kernel for a GPU."""
    mod = build(lambda emit, x: R.logical_not(emit(R.less(x, relax.const(1.0)))), ((4,), "float32"))
    return bool(faults.on_gpu(mod, [np.full(4, np.nan, "float32")], passes).outputs[0].all())


def test_fault() -> None:
    faults.needed(not is_less_denied(None), "schedule/sound_arithmetic.py")


def test_repair() -> None:
    assert is_less_denied(faults.left_to_tvm(CUDA))
    with faults.without("SoundArithmetic"):
        assert not is_less_denied(faults.left_to_tvm(CUDA))
