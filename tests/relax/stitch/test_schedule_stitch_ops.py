# SPDX-License-Identifier: Apache-2.0
"""ScheduleStitchOps: marked functions get a schedule, all others are left."""

from __future__ import annotations

import pytest
import tvm
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import tirx as T

from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import build, legalize
from tvm_stitch.config import StitchConfig
from tvm_stitch.records.decisions import decisions_of, without_decisions
from tvm_stitch.relax import ScheduleStitchOps, StitchError
from tvm_stitch.relax.stitch.mark import MergeStitchOps
from tvm_stitch.relax.stitch.stitch_ops import StitchOps
from tvm_stitch.testing.workloads.cases import softmax


def merged(mod: tvm.IRModule) -> tvm.IRModule:
    return MergeStitchOps()(StitchOps()(legalize(mod)))


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
def test_marked_functions_are_scheduled(kind: str) -> None:
    target = emulated_target() if kind == "cuda" else tvm.target.Target("llvm")
    before = merged(softmax(6, 200).build())
    after = ScheduleStitchOps(target)(before)
    found = decisions_of(after)
    ((name, plan),) = found.plans.items()
    assert found.declined == {} and plan.device.is_gpu == (kind == "cuda")
    assert after[name].attrs["tirx.is_scheduled"] and "tirx.is_scheduled" not in before[name].attrs
    assert ("blockIdx.x" in after[name].script()) == (kind == "cuda")
    # Its interface stays: parameters by order, shape and dtype.
    assert [str(p.ty) for p in after[name].params] == [str(p.ty) for p in before[name].params]
    tvm.ir.assert_structural_equal(after["main"], before["main"])


def test_scheduled_functions_are_left() -> None:
    target = emulated_target()
    once = ScheduleStitchOps(target)(merged(softmax(6, 200).build()))
    tvm.ir.assert_structural_equal(ScheduleStitchOps(target)(once), once)


def test_unmarked_functions_are_left() -> None:
    mod = legalize(build(lambda emit, x: R.exp(x), ((6, 20), "float32")))
    tvm.ir.assert_structural_equal(ScheduleStitchOps(emulated_target())(mod), mod)


@I.ir_module
class Odd:
    """A function that says it is a stitch op and on a CPU is none: its second block reads another row's reduction."""

    @T.prim_func(s_tir=True)
    def odd(
        x: T.Buffer((T.int64(8), T.int64(8)), "float32"), y: T.Buffer((T.int64(8), T.int64(8)), "float32")
    ):
        T.func_attr({"tvm_stitch.stitch_op": True})
        t = T.sblock_alloc_buffer((T.int64(8),), "float32")
        for i, k in T.grid(T.int64(8), T.int64(8)):
            with T.sblock("total"):
                v, r = T.axis.remap("SR", [i, k])
                with T.init():
                    t[v] = T.float32(0)
                t[v] = t[v] + x[v, r]
        for i, j in T.grid(T.int64(8), T.int64(8)):
            with T.sblock("out"):
                v, w = T.axis.remap("SS", [i, j])
                y[v, w] = x[v, w] - t[T.int64(7) - v]


def test_what_cannot_be_scheduled_is_left_with_a_reason() -> None:
    after = ScheduleStitchOps("llvm", StitchConfig())(Odd)
    declined = decisions_of(after).declined
    tvm.ir.assert_structural_equal(without_decisions(after), Odd)
    assert "outside its own row" in declined["odd"]
    with pytest.raises(StitchError, match="odd cannot be stitched: .*outside its own row"):
        ScheduleStitchOps("llvm", StitchConfig(strict=True))(Odd)
