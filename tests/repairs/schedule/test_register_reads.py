# SPDX-License-Identifier: Apache-2.0
"""Schedules whose threads read registers of others are found, and declined. Sound ones are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.s_tir import dlight as dl
from tvm.script import tirx as T

from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from stitch_testing.reference.relax import evaluate, mismatches
from tests.graph.helpers import build, legalize, prim_funcs
from tests.repairs import faults
from tvm_stitch.config import StitchConfig
from tvm_stitch.relax.pipeline import pipeline
from tvm_stitch.repairs.schedule.declining import ApplyDecliningRules
from tvm_stitch.repairs.schedule.register_reads import foreign_read

TARGET = emulated_target()
gpu = dl.gpu


def grouped(emit: Any, x: Any, w: Any) -> Any:
    return emit(R.nn.relu(emit(R.nn.conv2d(x, w, groups=2))))


GROUPED = build(grouped, ((1, 8, 3, 5), "float32"), ((12, 4, 1, 1), "float32"))


def fused(mod: tvm.IRModule) -> list[Any]:
    """Return the functions that TVM's fusion makes of a module."""
    passes = [relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps(), relax.transform.FuseTIR()]
    return list(prim_funcs(tvm.transform.Sequential(passes)(legalize(mod))).values())


def scheduled(func: Any, rule: Any) -> Any:
    with TARGET:
        found = rule.apply(func, TARGET, False)
    (schedule,) = found if isinstance(found, list) else [found]
    return schedule.mod["main"]


def test_a_grouped_convolution_with_something_behind_it() -> None:
    (func,) = fused(GROUPED)
    assert foreign_read(scheduled(func, gpu.Reduction())) == "group_conv2d_nchw_intermediate_local"
    assert foreign_read(scheduled(func, gpu.Fallback())) is None


def test_it_is_scheduled_by_another_rule_and_right() -> None:
    rules = ApplyDecliningRules(gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())
    (func,) = fused(GROUPED)
    with TARGET:
        rules(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    assert rules.declined["main"].keys() == {"Reduction"}
    assert "in registers" in rules.declined["main"]["Reduction"]
    rng = np.random.default_rng()
    inputs = [rng.standard_normal(s).astype("float32") for s in ((1, 8, 3, 5), (12, 4, 1, 1))]
    made = pipeline(TARGET, StitchConfig(compute="tvm"))
    run = run_cuda(GROUPED, inputs, target=TARGET, relax_pipeline=made).check()
    assert mismatches(list(run.outputs), evaluate(GROUPED, inputs), {"float32": (1e-5, 1e-5)}) == []


def mean(emit: Any, x: Any) -> Any:
    return emit(R.nn.relu(emit(R.mean(x, axis=[-1]))))


def softmax(emit: Any, x: Any) -> Any:
    return emit(R.nn.softmax(x))


def column_sum(emit: Any, x: Any) -> Any:
    return emit(R.exp(emit(R.sum(x, axis=[0]))))


def matvec(emit: Any, x: Any) -> Any:
    return emit(R.nn.relu(emit(R.matmul(x, relax.const(np.ones((64, 1), "float32"))))))


def conv(emit: Any, x: Any) -> Any:
    data = emit(R.reshape(x, (1, 8, 8, 64)))
    return emit(R.nn.relu(emit(R.nn.conv2d(data, relax.const(np.ones((4, 8, 3, 3), "float32"))))))


@pytest.mark.parametrize("body", [mean, softmax, column_sum, matvec, conv])
@pytest.mark.parametrize("rule", [gpu.Matmul, gpu.GEMV, gpu.Reduction, gpu.GeneralReduction, gpu.Fallback])
def test_sound_schedules(body: Callable[..., Any], rule: Any) -> None:
    for func in fused(build(body, ((64, 64), "float32"))):
        with TARGET:
            applies = rule().apply(func, TARGET, False) is not None
        assert not applies or foreign_read(scheduled(func, rule())) is None


def shifted(by: int) -> Any:
    """Threads that read the element which the thread ``by`` places on wrote."""

    @T.prim_func(s_tir=True)
    def func(a: T.Buffer((32,), "float32"), b: T.Buffer((32,), "float32")) -> None:
        t = T.sblock_alloc_buffer((64,), scope="local")
        for i in T.thread_binding(32, "threadIdx.x"):
            with T.sblock("first"):
                v = T.axis.spatial(64, i)
                t[v] = a[v]
        for i in T.thread_binding(32, "threadIdx.x"):
            with T.sblock("second"):
                v = T.axis.spatial(32, i)
                T.where(i < 31)
                b[v] = t[v + by] * T.float32(2)

    return func


def test_one_thread_on() -> None:
    assert foreign_read(shifted(0)) is None
    assert foreign_read(shifted(1)) == "t"


def is_right(passes: Any) -> bool:
    """Return whether a grouped convolution of ones, four to each result, is 4 everywhere."""
    inputs = [np.ones(s, "float32") for s in ((1, 8, 3, 5), (12, 4, 1, 1))]
    return bool((faults.on_gpu(GROUPED, inputs, passes).outputs[0] == 4).all())


def test_fault() -> None:
    faults.needed(not is_right(None), "schedule/register_reads.py")


def test_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_right(faults.left_to_tvm(faults.CUDA))
    monkeypatch.setattr(faults.module_of("repairs.schedule.declining"), "foreign_read", lambda func: None)
    assert not is_right(faults.left_to_tvm(faults.CUDA))
