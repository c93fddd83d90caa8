# SPDX-License-Identifier: Apache-2.0
"""Loops over tasks that are serial where there is little to do: one body for both, right at every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import tirx as T

import tvm_stitch
from tests.graph.helpers import build
from tvm_stitch import StitchConfig
from tvm_stitch.relax.lowering.serial_tasks import SerialTasks
from tvm_stitch.relax.pipeline import pipeline

F32 = "float32"
TASK = "_task"


@I.ir_module
class Marked:
    @T.prim_func(s_tir=True)
    def scale(a: T.handle, b: T.handle):
        T.func_attr({"global_symbol": "scale", "tirx.is_scheduled": True, "tirx.noalias": True})
        n = T.int64()
        A = T.match_buffer(a, (n, T.int64(8)), "float32")
        B = T.match_buffer(b, (n, T.int64(8)), "float32")
        with T.attr(0, "tvm_stitch.serial_where", n <= T.int64(4)):
            for task in T.parallel(n):
                for j in T.serial(T.int64(8)):
                    B[task, j] = A[task, j] * T.float32(2)


def kinds(func: Any) -> list[Any]:
    """Return the kinds of the loops of a function."""
    found: list[Any] = []
    tvm_ffi.structural_walk(func.body, (tirx.For, lambda loop: found.append(loop.kind)), order="pre")
    return found


def tasks(mod: tvm.IRModule) -> list[str]:
    return sorted(g.name_hint for g in mod.functions if g.name_hint.endswith(TASK))


def test_both_loops_call_one_function() -> None:
    after = SerialTasks()(Marked)
    assert tasks(after) == ["scale_task"]
    assert kinds(after["scale"]) == [tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL]
    assert kinds(after["scale_task"]) == [tirx.ForKind.SERIAL]
    assert set(after["scale_task"].attrs.keys()) >= {"tirx.is_scheduled"}
    assert not {"global_symbol", "tirx.noalias"} & set(after["scale_task"].attrs.keys())
    tvm.ir.assert_structural_equal(SerialTasks()(after), after)


@pytest.mark.parametrize("rows", [0, 1, 4, 5, 100])
def test_either_loop_computes_the_same(rows: int) -> None:
    built = tvm.tirx.build(SerialTasks()(Marked), tvm.target.Target("llvm"))
    x = np.random.default_rng(0).random((rows, 8), F32)
    y = tvm.runtime.tensor(np.zeros_like(x))
    built["scale"](tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), x * 2)


def test_what_is_not_marked_stays() -> None:
    without_launcher = StitchConfig(tvm_thread_pool=True)  # TVM does not compare modules with libraries
    mod = build(lambda e, x: [e(R.nn.softmax(x))], ((4096, 512), F32))
    before = pipeline("llvm", without_launcher)(mod)
    assert not tasks(before)
    tvm.ir.assert_structural_equal(SerialTasks()(before), before)


@pytest.mark.parametrize("default", [False, True], ids=["own lowering", "TVM's lowering"])
@pytest.mark.parametrize("columns", [12, 700, "m"], ids=str)
def test_rows_and_columns_of_any_number(columns: Any, default: bool) -> None:
    """Rows of 700 and of symbolic length are kept in memory that each task asks the runtime for."""
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    mod = build(lambda e, x: [e(R.nn.softmax(e(R.abs(x))))], ((n, m if columns == "m" else columns), F32))
    target = tvm.target.Target("llvm")
    assert len(tasks(pipeline(target)(mod))) == 1
    if default:
        executable = tvm.compile(mod, target, relax_pipeline=pipeline(target))
    else:
        executable = tvm_stitch.compile(mod, target)
    vm = relax.VirtualMachine(executable, tvm.cpu())
    for rows in (0, 1, 3, 2000):
        for length in (1, 7, 8, 9, 31, 33, 47) if columns == "m" else (columns,):
            x = np.random.default_rng(rows).standard_normal((rows, length)).astype(F32)
            wide = np.exp(np.abs(x.astype("float64")))
            expected = wide / wide.sum(-1, keepdims=True)
            np.testing.assert_allclose(vm["main"](tvm.runtime.tensor(x)).numpy(), expected, rtol=1e-5)


def test_memory_whose_size_a_task_computes_stays_in_the_parallel_loop() -> None:
    @I.ir_module
    class Sized:
        @T.prim_func(s_tir=True)
        def scale(a: T.handle):
            T.func_attr({"global_symbol": "scale", "tirx.is_scheduled": True})
            n = T.int64()
            A = T.match_buffer(a, (n,), "float32")
            with T.attr(0, "tvm_stitch.serial_where", n <= T.int64(4)):
                for task in T.parallel(n):
                    for j in T.serial(T.int64(2)):
                        kept = T.alloc_buffer((n + j,), "float32")
                        kept[j] = A[task]
                        A[task] = kept[j] + T.float32(1)

    after = SerialTasks()(Sized)
    assert not tasks(after) and kinds(after["scale"]) == kinds(Sized["scale"])
