# SPDX-License-Identifier: Apache-2.0
"""Scheduled loops over booleans are not vectorized. Others are as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.script import tirx as T

from tests.repairs import faults
from tvm_stitch.repairs.schedule.scalar_booleans import ScalarBooleans


def module(func: tvm.tirx.PrimFunc, scheduled: bool = True) -> tvm.IRModule:
    func = func.with_attr("global_symbol", "main")
    return tvm.IRModule({"main": func.with_attr("tirx.is_scheduled", True) if scheduled else func})


@T.prim_func(s_tir=True)
def masked(m: T.Buffer((8, 2), "bool"), x: T.Buffer((8, 2), "float32"), y: T.Buffer((8, 2), "float32")):
    for i in range(8):
        for v in T.vectorized(2):
            y[i, v] = T.Select(m[i, v], x[i, v], T.float32(0))
    for i in range(8):
        for v in T.vectorized(2):
            y[i, v] = y[i, v] + x[i, v]


@T.prim_func(s_tir=True)
def masked_after(m: T.Buffer((8, 2), "bool"), x: T.Buffer((8, 2), "float32"), y: T.Buffer((8, 2), "float32")):
    for i in range(8):
        for v in T.unroll(2):
            y[i, v] = T.Select(m[i, v], x[i, v], T.float32(0))
    for i in range(8):
        for v in T.vectorized(2):
            y[i, v] = y[i, v] + x[i, v]


@T.prim_func(s_tir=True)
def compared(x: T.Buffer((8, 2), "float32"), y: T.Buffer((8, 2), "bool")):
    for i in range(8):
        for v in T.vectorized(2):
            y[i, v] = x[i, v] < T.float32(0)


@T.prim_func(s_tir=True)
def compared_after(x: T.Buffer((8, 2), "float32"), y: T.Buffer((8, 2), "bool")):
    for i in range(8):
        for v in T.unroll(2):
            y[i, v] = x[i, v] < T.float32(0)


def test_loads_are_scalar() -> None:
    tvm.ir.assert_structural_equal(ScalarBooleans()(module(masked)), module(masked_after))


def test_stores_are_scalar() -> None:
    tvm.ir.assert_structural_equal(ScalarBooleans()(module(compared)), module(compared_after))


def test_what_is_not_scheduled_stays() -> None:
    mod = module(masked, scheduled=False)
    assert ScalarBooleans()(mod).same_as(mod)


@T.prim_func(private=True, s_tir=True)
def chosen(m: T.Buffer((64,), "bool"), x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    for i in T.thread_binding(32, thread="threadIdx.x"):
        for v in T.vectorized(2):
            with T.sblock("chosen"):
                w = T.axis.spatial(64, i * 2 + v)
                y[w] = T.Select(m[w], x[w], T.float32(0))


def is_right(*passes: Any) -> bool:
    """Return whether a kernel with pairs of booleans gives what NumPy does."""
    builder = relax.BlockBuilder()
    types = [relax.TensorType((64,), dtype) for dtype in ("bool", "float32")]
    params = [relax.Var(name, ty) for name, ty in zip("mx", types)]
    with builder.function("main", params):
        called = builder.add_func(chosen, "chosen")
        builder.emit_func_output(builder.emit(relax.call_tir(called, params, types[1])))
    rng = np.random.default_rng(0)
    m, x = rng.random(64) < 0.5, rng.standard_normal(64).astype("float32")
    made = tvm.transform.Sequential([*passes, faults.stock(faults.CUDA)])
    run = faults.on_gpu(builder.get(), [m, x], made)
    return not run.reports and np.array_equal(run.outputs[0], np.where(m, x, 0))


def test_fault() -> None:
    faults.needed(faults.raises(is_right) or not is_right(), "schedule/scalar_booleans.py")


def test_repair() -> None:
    assert is_right(ScalarBooleans())
    with faults.without("ScalarBooleans"):
        assert faults.raises(lambda: is_right(ScalarBooleans())) or not is_right(ScalarBooleans())
