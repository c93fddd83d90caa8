# SPDX-License-Identifier: Apache-2.0
"""TVM's kernels that have nothing to compute touch no memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import tirx as T

from cuda_emulator import lower, run_lowered
from tests.graph.helpers import build, symbol
from tests.repairs import faults
from tvm_stitch.relax import pipeline
from tvm_stitch.repairs.schedule.empty_grids import EmptyGrids

TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
CASES: dict[str, Callable[..., Any]] = {
    "sum": lambda emit, x: R.sum(x, 1),
    "arg max": lambda emit, x: R.argmax(x, 1),
    "matmul": lambda emit, x: R.matmul(x, relax.const(np.ones((16, 24), "float32"))),
    "matrix times vector": lambda emit, x: R.matmul(x, relax.const(np.ones((16, 1), "float32"))),
    "pool": lambda emit, x: R.nn.max_pool2d(emit(R.expand_dims(x, 0)), (3, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_extents_of_zero(name: str) -> None:
    n = symbol("n")
    mod = build(lambda emit, x: [CASES[name](emit, x)], ((n, symbol("m"), 16), "float32"))
    lowered = lower(mod, TARGET, pipeline(TARGET))
    for rows in (0, 3):
        result = run_lowered(lowered, [np.ones((rows, 5, 16), "float32")])
        assert not result.reports, result.reports
        assert result.outputs[0].size == 0 or rows


@T.prim_func(s_tir=True)
def scheduled(x: T.Buffer((4, 7), "float32"), y: T.Buffer((4, 7), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    for i in T.thread_binding(4, thread="blockIdx.x"):
        for k in T.thread_binding(7, thread="threadIdx.x"):
            with T.sblock("copy"):
                vi, vk = T.axis.remap("SS", [i, k])
                y[vi, vk] = x[vi, vk]


def test_grids_that_are_never_empty_stay() -> None:
    mod = tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")})
    assert EmptyGrids()(mod).same_as(mod)


def test_launches_written_by_hand_are_guarded() -> None:
    """TOPI's scan of long rows launches its kernels itself: each of them leaves where there are no rows."""
    n = symbol("n")
    mod = build(lambda emit, x: [R.cumsum(x, 1)], ((5, 600, n), "float32"))
    with TARGET:
        made = pipeline(TARGET)(mod)
    scan = next(str(func) for gvar, func in made.functions_items() if "cumsum" in gvar.name_hint)
    launches = [line for line in scan.splitlines() if 'launch_thread("blockIdx.x"' in line and "n" in line]
    assert len(launches) >= 4
    guards = [
        line for line in scan.splitlines() if "static_cast<int64_t>" in line and "<= T.int64(0)" in line
    ]
    assert len(guards) == len(launches) + 1  # and the sum that follows


def empty_sums(passes: Any) -> list[Any]:
    """Return the emulator's reports of sums of no rows."""
    mod = build(lambda emit, x: R.sum(x, 1), ((symbol("n"), symbol("m"), 16), "float32"))
    return list(faults.on_gpu(mod, [np.ones((0, 5, 16), "float32")], passes).reports)


def test_fault() -> None:
    faults.needed(bool(empty_sums(None)), "schedule/empty_grids.py")


def test_repair() -> None:
    assert not empty_sums(faults.left_to_tvm(TARGET))
    with faults.without("EmptyGrids"):
        assert empty_sums(faults.left_to_tvm(TARGET))
