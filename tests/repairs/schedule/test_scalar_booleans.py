# SPDX-License-Identifier: Apache-2.0
"""Scheduled loops over booleans are not vectorized; others are as they were."""

from __future__ import annotations

import tvm
from tvm.script import tirx as T

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
