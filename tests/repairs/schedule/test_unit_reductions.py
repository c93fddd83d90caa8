# SPDX-License-Identifier: Apache-2.0
"""Reductions of one element become plain expressions before TVM schedules them. Others stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op as R
from tvm.script import tirx as T

from tests.graph.helpers import build
from tests.repairs import faults
from tvm_stitch.repairs.schedule.unit_reductions import UnitReductions


def module(func: tvm.tirx.PrimFunc) -> tvm.IRModule:
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


@T.prim_func(s_tir=True)
def outer_product(
    x: T.Buffer((7, 1), "float32"), w: T.Buffer((1, 5), "float32"), y: T.Buffer((7, 5), "float32")
):
    for i, j, k in T.grid(7, 5, 1):
        with T.sblock("matmul"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                y[vi, vj] = T.float32(0.25)
            y[vi, vj] = y[vi, vj] + x[vi, vk] * w[vk, vj]


@T.prim_func(s_tir=True)
def outer_product_after(
    x: T.Buffer((7, 1), "float32"), w: T.Buffer((1, 5), "float32"), y: T.Buffer((7, 5), "float32")
):
    for i, j, k in T.grid(7, 5, 1):
        with T.sblock("matmul"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            y[vi, vj] = T.call_pure_extern("float32", "float", T.float32(0.25) + x[vi, vk] * w[vk, vj])


@T.prim_func(s_tir=True)
def last_of_two(x: T.Buffer((7, 1), "float32"), v: T.Buffer((7,), "float32"), at: T.Buffer((7,), "int64")):
    for i, k in T.grid(7, 1):
        with T.sblock("argmax"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                at[vi] = T.int64(-1)
                v[vi] = T.float32(-1.0)
            at[vi] = T.Select(v[vi] >= x[vi, vk], at[vi], T.Cast("int64", vk))
            v[vi] = T.Select(v[vi] >= x[vi, vk], v[vi], x[vi, vk])


@T.prim_func(s_tir=True)
def sum_of_two(x: T.Buffer((7, 1, 2), "float32"), y: T.Buffer((7,), "float32")):
    for i, j, k in T.grid(7, 1, 2):
        with T.sblock("sum"):
            vi, vj, vk = T.axis.remap("SRR", [i, j, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi, vj, vk]


@T.prim_func(s_tir=True)
def of_any_length(a: T.handle, y: T.Buffer((7,), "float32")):
    n = T.int64()
    x = T.match_buffer(a, (7, n), "float32")
    for i, k in T.grid(7, n):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi, vk]


def test_one_product_is_not_summed() -> None:
    tvm.ir.assert_structural_equal(UnitReductions()(module(outer_product)), module(outer_product_after))


OTHERS = [sum_of_two, of_any_length, last_of_two]


@pytest.mark.parametrize("func", OTHERS, ids=lambda f: str(f.attrs["global_symbol"]))
def test_other_reductions_stay(func: tvm.tirx.PrimFunc) -> None:
    mod = module(func)
    assert UnitReductions()(mod).same_as(mod)


def test_scheduled_functions_stay() -> None:
    mod = module(outer_product.with_attr("tirx.is_scheduled", True))
    assert UnitReductions()(mod).same_as(mod)


def one_plus_one(passes: Any) -> np.ndarray:
    """Build a product of depth one, of ones, with a bias of one."""
    specs = [((7, 1), "float32"), ((1, 5), "float32"), ((5,), "float32")]

    def body(emit: Any, x: Any, w: Any, bias: Any) -> Any:
        return R.nn.relu(emit(R.add(emit(R.matmul(x, w)), bias)))

    inputs = [np.ones(shape, dtype) for shape, dtype in specs]
    return np.asarray(faults.on_gpu(build(body, *specs), inputs, passes).outputs[0])


def test_fault() -> None:
    faults.needed(bool((one_plus_one(None) == 3).all()), "schedule/unit_reductions.py")


def test_repair() -> None:
    assert (one_plus_one(faults.left_to_tvm(faults.CUDA)) == 2).all()
    with faults.without("UnitReductions"):
        assert (one_plus_one(faults.left_to_tvm(faults.CUDA)) == 3).all()
