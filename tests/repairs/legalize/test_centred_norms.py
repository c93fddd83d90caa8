# SPDX-License-Identifier: Apache-2.0
"""Group and instance norms: one stitched kernel, and as many digits as two passes over the data give."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as RS
from tvm.script import tirx as T

import tvm_stitch
from cuda_emulator import run_cuda
from stitch_testing.more_than_stock import more_than_stock
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import build, draw, symbol
from tests.repairs import faults
from tvm_stitch.config import StitchConfig
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.repairs.legalize.centred_norms import CENTRED_NORMS

EPSILONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 3e-6, "float64": 1e-13}
"""Errors allowed, relative to the largest value."""


def wanted(x: Any, gamma: Any, beta: Any, groups: int | None, channel: int, axes: list[int]) -> np.ndarray:
    """Compute the norm in float64. ``groups`` None is an instance norm."""
    wide = np.moveaxis(x.astype("float64"), channel, 0)
    others = [a if a > channel else a + 1 for a in axes]
    grouped = wide.reshape(groups or wide.shape[0], -1, *wide.shape[1:])
    over = tuple(a + 1 for a in others) if groups is None else (1, *(a + 1 for a in others))
    center = grouped.mean(over, keepdims=True)
    normal = (grouped - center) / np.sqrt(((grouped - center) ** 2).mean(over, keepdims=True) + 1e-5)
    normal = np.moveaxis(normal.reshape(wide.shape), 0, -1)
    return np.moveaxis(normal * gamma.astype("float64") + beta.astype("float64"), -1, channel)


def model(groups: int | None, channel: int, axes: list[int]) -> Any:
    def body(emit: Any, x: Any, gamma: Any, beta: Any) -> Any:
        if groups is None:
            return R.nn.instance_norm(x, gamma, beta, channel_axis=channel, axes=axes)
        return R.nn.group_norm(x, gamma, beta, num_groups=groups, channel_axis=channel, axes=axes)

    return body


def run(mod: tvm.IRModule, inputs: list[np.ndarray]) -> np.ndarray:
    """Compiled for a CPU, as one stitch op."""
    recorder = Recorder()
    executable = tvm.compile(
        mod, "llvm", relax_pipeline=pipeline("llvm", StitchConfig(strict=True), recorder)
    )
    assert len(recorder.plans) == 1
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs))
    return result.numpy()


CASES = {
    "groups": ((2, 12, 5, 7), 4, 1, [2, 3]),
    "one group": ((2, 12, 35), 1, 1, [2]),
    "groups of one channel": ((3, 6, 11), 6, 1, [2]),
    "channels last": ((2, 5, 7, 12), 4, 3, [1, 2]),
    "negative axes": ((2, 5, 7, 12), 3, -1, [-3, -2]),
    "no other axes": ((5, 12), 3, 1, []),
    "instance": ((2, 6, 5, 7), None, 1, [2, 3]),
    "instance, channels last": ((2, 5, 7, 6), None, 3, [1, 2]),
    "one element": ((1, 1, 1), 1, 1, [2]),
}


OF_TYPES = [
    (name, dtype)
    for name, case in CASES.items()
    for dtype in EPSILONS
    if dtype != "bfloat16" or case[1] is None  # R.nn.group_norm takes no bfloat16
]


@pytest.mark.parametrize(("name", "dtype"), OF_TYPES)
def test_values(name: str, dtype: str) -> None:
    shape, groups, channel, axes = CASES[name]
    channels = shape[channel]
    specs = [(shape, dtype), ((channels,), dtype), ((channels,), dtype)]
    mod = build(model(groups, channel, axes), *specs)
    inputs = draw(specs)
    rank = len(shape)
    expected = wanted(*inputs, groups, channel % rank, [a % rank for a in axes])
    error = np.abs(run(mod, inputs).astype("float64") - expected).max()
    assert error <= EPSILONS[dtype] * (np.abs(expected).max() + 1)


@pytest.mark.parametrize("groups", [4, None])
def test_a_large_mean_costs_no_digits(groups: int | None) -> None:
    specs = [((2, 8, 40), "float32"), ((8,), "float32"), ((8,), "float32")]
    x, gamma, beta = draw(specs)
    x = (x + 1000).astype("float32")
    result = run(build(model(groups, 1, [2]), *specs), [x, gamma, beta])
    np.testing.assert_allclose(result, wanted(x, gamma, beta, groups, 1, [2]), rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["groups", "channels last", "instance"])
def test_in_the_emulator(name: str) -> None:
    shape, groups, channel, axes = CASES[name]
    specs = [(shape, "float32"), ((shape[channel],), "float32"), ((shape[channel],), "float32")]
    inputs, target = draw(specs), emulated_target()
    mod = build(model(groups, channel, axes), *specs)
    done = run_cuda(mod, [a.copy() for a in inputs], target=target, relax_pipeline=pipeline(target)).check()
    assert len(done.launches) == 1
    np.testing.assert_allclose(done.outputs[0], wanted(*inputs, groups, channel, axes), rtol=0, atol=1e-5)


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_activation_and_residual_are_in_the_kernel(target: str) -> None:
    n = symbol()
    x = ((n, 12, 5, 7), "float32")

    def body(emit: Any, x: Any, gamma: Any, beta: Any, residual: Any) -> Any:
        norm = emit(R.nn.group_norm(emit(R.add(x, residual)), gamma, beta, 3, 1, [2, 3]))
        return emit(R.nn.silu(norm))

    mod = build(body, x, ((12,), "float32"), ((12,), "float32"), x)
    recorder = Recorder()
    tvm.compile(mod, target, relax_pipeline=pipeline(target, StitchConfig(strict=True), recorder))
    assert len(recorder.plans) == 1 and not recorder.declined
    assert not more_than_stock(mod, target, pipeline(target))


def test_symbolic_channels_keep_the_formula_of_tvm() -> None:
    channels = symbol("c")
    vector = ((channels,), "float32")
    mod = build(model(1, 1, [2]), ((2, channels, 5), "float32"), vector, vector)
    stock = relax.transform.LegalizeOps()(mod)
    tvm.ir.assert_structural_equal(relax.transform.LegalizeOps(CENTRED_NORMS)(mod), stock)
    tvm_stitch.compile(mod, "llvm")


@pytest.mark.parametrize("groups", [31, None])
def test_behind_an_operator_that_writes_its_extents_otherwise(groups: int | None) -> None:
    """TVM's fusion takes a value's extent in two functions as one only where both write it the same way."""
    n = symbol()

    def body(emit: Any, x: Any, gamma: Any, beta: Any, _rows: Any) -> Any:
        return model(groups, 1, [2])(emit, emit(R.tile(x, [3, 2, 1])), gamma, beta)

    vector = ((62,), "float32")
    mod = build(body, ((n * 3, 31, 4), "float32"), vector, vector, ((n,), "float32"))
    x, gamma, beta = draw([((6, 31, 4), "float32"), ((62,), "float32"), ((62,), "float32")])
    expected = wanted(np.tile(x, (3, 2, 1)), gamma, beta, groups, 1, [2])
    np.testing.assert_allclose(
        run(mod, [x, gamma, beta, np.zeros(2, "float32")]), expected, rtol=0, atol=1e-5
    )


def test_what_becomes_of_an_instance_norm() -> None:
    @I.ir_module
    class Before:
        @RS.function
        def main(
            x: RS.Tensor((2, 6, 5), "float16"), g: RS.Tensor((6,), "float16"), b: RS.Tensor((6,), "float16")
        ) -> RS.Tensor((2, 6, 5), "float16"):
            with RS.dataflow():
                y = RS.nn.instance_norm(x, g, b, channel_axis=1, axes=[-1])
                RS.output(y)
            return y

    @I.ir_module
    class After:
        @T.prim_func(private=True, s_tir=True)
        def instance_norm(
            x: T.Buffer((T.int64(2), T.int64(6), T.int64(5)), "float16"),
            g: T.Buffer((T.int64(6),), "float16"),
            b: T.Buffer((T.int64(6),), "float16"),
            T_norm: T.Buffer((T.int64(2), T.int64(6), T.int64(5)), "float16"),
        ) -> None:
            T.func_attr({"tirx.noalias": True})
            x_sum = T.sblock_alloc_buffer((T.int64(2), T.int64(6)))
            x_mean = T.sblock_alloc_buffer((T.int64(2), T.int64(6)))
            x_var_sum = T.sblock_alloc_buffer((T.int64(2), T.int64(6)))
            for i0, i1, k2 in T.grid(T.int64(2), T.int64(6), T.int64(5)):
                with T.sblock("x_sum"):
                    n, c, p = T.axis.remap("SSR", [i0, i1, k2])
                    with T.init():
                        x_sum[n, c] = T.float32(0)
                    x_sum[n, c] = x_sum[n, c] + T.Cast("float32", x[n, c, p])
            for i0, i1 in T.grid(T.int64(2), T.int64(6)):
                with T.sblock("x_mean"):
                    n, c = T.axis.remap("SS", [i0, i1])
                    x_mean[n, c] = x_sum[n, c] / T.float32(5)
            for i0, i1, k2 in T.grid(T.int64(2), T.int64(6), T.int64(5)):
                with T.sblock("x_var_sum"):
                    n, c, p = T.axis.remap("SSR", [i0, i1, k2])
                    with T.init():
                        x_var_sum[n, c] = T.float32(0)
                    x_var_sum[n, c] = x_var_sum[n, c] + (T.Cast("float32", x[n, c, p]) - x_mean[n, c]) * (
                        T.Cast("float32", x[n, c, p]) - x_mean[n, c]
                    )
            for i0, i1, i2 in T.grid(T.int64(2), T.int64(6), T.int64(5)):
                with T.sblock("T_norm"):
                    n, c, p = T.axis.remap("SSS", [i0, i1, i2])
                    T_norm[n, c, p] = T.Cast(
                        "float16",
                        (T.Cast("float32", x[n, c, p]) - x_mean[n, c])
                        * T.rsqrt(x_var_sum[n, c] / T.float32(5) + T.float32(1e-5))
                        * T.Cast("float32", g[c])
                        + T.Cast("float32", b[c]),
                    )

        @RS.function
        def main(
            x: RS.Tensor((2, 6, 5), "float16"), g: RS.Tensor((6,), "float16"), b: RS.Tensor((6,), "float16")
        ) -> RS.Tensor((2, 6, 5), "float16"):
            cls = After
            with RS.dataflow():
                y = RS.call_tir(cls.instance_norm, (x, g, b), out_ty=RS.Tensor((2, 6, 5), "float16"))
                RS.output(y)
            return y

    tvm.ir.assert_structural_equal(relax.transform.LegalizeOps(CENTRED_NORMS)(Before), After)


def worst_error(passes: Any) -> float:
    """Return the greatest error of a group norm of numbers around 1000."""
    specs = [((2, 8, 40), "float32"), ((8,), "float32"), ((8,), "float32")]
    x, gamma, beta = draw(specs)
    x = (x + 1000).astype("float32")
    (result,) = faults.on_cpu(build(model(4, 1, [2]), *specs), [x, gamma, beta], passes)
    return float(np.abs(result - wanted(x, gamma, beta, 4, 1, [2])).max())


def test_fault() -> None:
    faults.needed(worst_error(None) > 0.1, "legalize/centred_norms.py")


def test_repair() -> None:
    assert worst_error(faults.legalized_by(CENTRED_NORMS, faults.LLVM)) < 1e-3
    assert worst_error(faults.legalized_by({}, faults.LLVM)) > 0.1
