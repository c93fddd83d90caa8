# SPDX-License-Identifier: Apache-2.0
"""Relay modules built for CUDA, run by the emulator: stock kernels, workspaces, findings, errors."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relay, tir
from tvm.script import tir as T

from cuda_emulator import (
    Options,
    default_target,
    lower_prim_func,
    lower_relay,
    run_prim_func,
    run_relay_cuda,
    run_relay_lowered,
)
from cuda_emulator.relay import run_lowered_prim_func

RNG = np.random.default_rng(3)


def draw(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def module(params: list[Any], body: Any) -> tvm.IRModule:
    return tvm.IRModule.from_expr(relay.Function(params, body))


def np_softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("seed", [0, 5])
def test_a_graph_of_stock_kernels(seed: int) -> None:
    """A dense layer by TVM's schedule, a softmax, a reshape that costs nothing."""
    x, w = relay.var("x", shape=(6, 40)), relay.var("w", shape=(24, 40))
    mod = module([x, w], relay.reshape(relay.nn.softmax(relay.nn.dense(x, w)), (2, -1)))
    a, b = draw(6, 40), draw(24, 40)
    run = run_relay_cuda(mod, [a], {"w": b}, seed=seed).check()
    want = np_softmax(a.astype("float64") @ b.T.astype("float64")).reshape(2, -1)
    np.testing.assert_allclose(run.outputs[0], want, rtol=1e-5, atol=1e-6)
    assert ["dense" in launch.name for launch in run.launches] == [True, False]


def test_inputs_by_name_and_in_the_order_of_main() -> None:
    x, y = relay.var("x", shape=(4,)), relay.var("y", shape=(4,))
    mod = module([x, y], y - x)
    a, b = draw(4), draw(4)
    np.testing.assert_array_equal(run_relay_cuda(mod, [a, b]).outputs[0], b - a)
    np.testing.assert_array_equal(run_relay_cuda(mod, {"y": b, "x": a}).outputs[0], b - a)


def test_several_outputs_some_of_them_inputs_or_views() -> None:
    x = relay.var("x", shape=(2, 6))
    halves = relay.split(relay.exp(x), 2, axis=1)
    mod = module([x], relay.Tuple([halves[1], x, relay.reshape(halves[0], (6,))]))
    a = draw(2, 6)
    first, same, flat = run_relay_cuda(mod, [a]).check().outputs
    np.testing.assert_allclose(first, np.exp(a)[:, 3:], rtol=1e-6)
    np.testing.assert_array_equal(same, a)
    np.testing.assert_allclose(flat, np.exp(a)[:, :3].reshape(-1), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "bool", "float64"])
def test_dtypes(dtype: str) -> None:
    x = relay.var("x", shape=(3, 5), dtype=dtype)
    a = draw(3, 5) * 4
    values = a.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    body = relay.logical_not(x) if dtype == "bool" else relay.nn.relu(x)
    (got,) = run_relay_cuda(module([x], body), [values]).check().outputs
    assert got.dtype == values.dtype
    np.testing.assert_array_equal(
        got, ~values if dtype == "bool" else np.maximum(values, values.dtype.type(0))
    )


def test_convolution_pooling_and_matmul_by_stock_schedules() -> None:
    x, w = relay.var("x", shape=(1, 4, 10, 10)), relay.var("w", shape=(8, 4, 3, 3))
    conv = relay.nn.relu(relay.nn.conv2d(x, w, channels=8, kernel_size=(3, 3)))
    pooled = relay.reshape(relay.nn.max_pool2d(conv, (2, 2), strides=(2, 2)), (1, 8, 16))
    mod = module([x, w], relay.nn.batch_matmul(pooled, pooled))
    a, b = draw(1, 4, 10, 10), draw(8, 4, 3, 3)
    windows = np.lib.stride_tricks.sliding_window_view(a[0].astype("float64"), (3, 3), axis=(1, 2))
    image = np.maximum(np.einsum("ihwkl,oikl->ohw", windows, b), 0)
    p = image.reshape(8, 4, 2, 4, 2).max((2, 4)).reshape(8, 16)
    run = run_relay_cuda(mod, [a], {"w": b}).check()
    np.testing.assert_allclose(run.outputs[0][0], p @ p.T, rtol=1e-4)


def test_what_build_returns_is_run() -> None:
    """``build`` takes the place of relay.build, in a pass context in which nothing is compiled."""
    x = relay.var("x", shape=(4, 8))
    mod = module([x], relay.exp(relay.exp(x)))
    asked = []

    def build(mod: Any, target: Any, params: Any) -> Any:
        asked.append((str(target.kind), params))
        with tvm.transform.PassContext(
            opt_level=0, config=dict(tvm.transform.PassContext.current().config.items())
        ):
            return relay.build(mod, target=target, params=params)

    a = draw(4, 8)
    run = run_relay_cuda(mod, [a], build=build)
    assert asked == [("cuda", None)]
    assert len(run.launches) == 2
    assert len(run_relay_cuda(mod, [a]).launches) == 1
    np.testing.assert_allclose(run.outputs[0], np.exp(np.exp(a)), rtol=1e-5)


@T.prim_func
def two_kernels(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")) -> None:
    """Double through a workspace. The second kernel reads what the first wrote."""
    held = T.allocate([64], "float32", "global")
    held_1 = T.Buffer((64,), data=held)
    with T.launch_thread("blockIdx.x", 2) as b:
        t = T.launch_thread("threadIdx.x", 32)
        held_1[b * 32 + t] = x[b * 32 + t] * T.float32(2)
    with T.launch_thread("blockIdx.x", 2) as b:
        t = T.launch_thread("threadIdx.x", 32)
        y[b * 32 + t] = held_1[63 - (b * 32 + t)]


def test_workspaces_of_host_code() -> None:
    a = draw(64)
    run = run_prim_func(two_kernels, [a]).check()
    np.testing.assert_array_equal(run.outputs[0], a[::-1] * 2)
    assert [launch.grid for launch in run.launches] == [(2, 1, 1), (2, 1, 1)]


def test_workspaces_hold_nothing_at_first() -> None:
    """The first kernel writes one block only: what the second reads beyond is reported, and is NaN."""
    lowered = lower_prim_func(two_kernels)
    lowered = dataclasses.replace(
        lowered, sources=(lowered.source.replace("  held_1[", "  if (blockIdx.x == 0) held_1[", 1),)
    )
    run = run_lowered_prim_func(lowered, two_kernels, [draw(64)])
    assert {report.kind for report in run.reports} == {"uninitialized-read"}
    assert np.isnan(run.outputs[0][:32]).all() and not np.isnan(run.outputs[0][32:]).any()


@T.prim_func
def turned(x: T.Buffer((2, 64), "float32"), y: T.Buffer((2, 64), "float32")) -> None:
    """Reverse each row through shared memory."""
    with T.launch_thread("blockIdx.x", 2) as b:
        t = T.launch_thread("threadIdx.x", 64)
        held = T.allocate([64], "float32", "shared")
        held_1 = T.Buffer((64,), data=held, scope="shared")
        held_1[t] = x[b, t]
        y[b, t] = held_1[63 - t]


def test_findings() -> None:
    a, lowered = draw(2, 64), lower_prim_func(turned)
    np.testing.assert_array_equal(run_lowered_prim_func(lowered, turned, [a]).check().outputs[0], a[:, ::-1])

    racing = dataclasses.replace(lowered, sources=(lowered.source.replace("__syncthreads();", ""),))
    assert {r.kind for r in run_lowered_prim_func(racing, turned, [a]).reports} >= {"race"}

    wide = dataclasses.replace(lowered, extra_blocks={"main_kernel": 1})
    assert {r.kind for r in run_lowered_prim_func(wide, turned, [a]).reports} == {"out-of-bounds"}

    idle = dataclasses.replace(lowered, sources=(lowered.source.replace("  y[", "  if (blockIdx.x) y[", 1),))
    (report,) = run_lowered_prim_func(idle, turned, [a]).reports
    assert report.kind == "unwritten" and "64 of 128" in report.message


def test_a_run_that_is_given_up_has_reports_and_no_outputs() -> None:
    lowered = lower_prim_func(turned)
    endless = lowered.source.replace("__syncthreads();", "while (*(volatile float*)held_1 == held_1[0]);")
    stuck = dataclasses.replace(lowered, sources=(endless,))
    run = run_lowered_prim_func(stuck, turned, [draw(2, 64)], options=Options(max_accesses=100_000))
    assert not run.outputs
    assert "timeout" in {report.kind for report in run.reports}


def test_host_code_asks_the_emulated_device() -> None:
    x = tir.decl_buffer([1], "float32", "x")
    handle = tir.Var("x_handle", "handle")
    asked = tir.call_packed("runtime.GetDeviceAttr", 2, 0, 7)
    body = tir.AssertStmt(tir.GE(asked, 100), tir.StringImm("too few"), tir.Evaluate(0))
    store = tir.BufferStore(x, tir.const(1.0, "float32"), [0])
    thread = tir.IterVar((0, 1), "t", tir.IterVar.ThreadIndex, "threadIdx.x")
    kernel = tir.AttrStmt(thread, "thread_extent", 1, store)
    func = tir.PrimFunc([handle], tir.SeqStmt([body, kernel]), None, {handle: x})
    assert run_prim_func(func, [], options=Options(multiprocessors=132)).check().outputs[0] == 1
    with pytest.raises(Exception, match="too few"):
        run_prim_func(func, [], options=Options(multiprocessors=99))


def test_nothing_is_left_behind() -> None:
    names = set(tvm._ffi.registry.list_global_func_names())
    run_prim_func(two_kernels, [draw(64)])
    assert set(tvm._ffi.registry.list_global_func_names()) == names
    assert "tir.add_lower_pass" not in tvm.transform.PassContext.current().config


def test_one_lowering_serves_several_runs() -> None:
    x = relay.var("x", shape=(5, 7))
    lowered = lower_relay(module([x], relay.nn.softmax(x)))
    for seed in range(3):
        a = draw(5, 7)
        run = run_relay_lowered(lowered, [a], seed=seed).check()
        np.testing.assert_allclose(run.outputs[0], np_softmax(a), rtol=1e-5)


def test_errors() -> None:
    x = relay.var("x", shape=(4, 2))
    mod = module([x], relay.exp(x))
    with pytest.raises(ValueError, match=r"1 inputs \(x\), not 0"):
        run_relay_cuda(mod, [])
    with pytest.raises(ValueError, match="the inputs are x, not y"):
        run_relay_cuda(mod, {"y": draw(4, 2)})
    with pytest.raises(ValueError, match=r"x is float32 of shape \(4, 2\), not float32 of shape \(4, 3\)"):
        run_relay_cuda(mod, [draw(4, 3)])


def test_a_build_that_hides_the_emulators_context_is_refused() -> None:
    x = relay.var("x", shape=(3, 4))
    mod = module([x], relay.nn.softmax(x))

    def own_context(mod: Any, target: Any, params: Any) -> Any:
        with tvm.transform.PassContext(opt_level=3):
            return relay.build(mod, target, params=params)

    with pytest.raises(ValueError, match="entered a PassContext of its own"):
        lower_relay(mod, build=own_context)
    with tvm.transform.PassContext(opt_level=1):
        run_relay_cuda(mod, [draw(3, 4)]).check()


def test_external_functions_are_refused() -> None:
    lowered = lower_relay(module([x := relay.var("x", shape=(4,))], relay.exp(x)))
    graph = json.loads(json.dumps(lowered.graph))
    next(n for n in graph["nodes"] if n["op"] == "tvm_op")["attrs"]["func_name"] = "cublas_thing"
    with pytest.raises(NotImplementedError, match="cublas_thing is no function of the library"):
        run_relay_lowered(dataclasses.replace(lowered, graph=graph), [draw(4)])


def test_the_target_has_an_llvm_host() -> None:
    target = default_target()
    assert (str(target.kind), str(target.host.kind), target.arch) == ("cuda", "llvm", "sm_90")


def test_a_stitched_module() -> None:
    """Stitched kernels are modules of their own next to TVM's. Column sums make one of two kernels with a workspace."""
    from tvm_stitch.relay import enable

    x, w = relay.var("x", shape=(16, 64)), relay.var("w", shape=(32, 64))
    y = relay.nn.softmax(relay.nn.dense(x, w))
    mod = module(
        [x, w],
        relay.Tuple(
            [relay.nn.dense(relay.tanh(y), relay.const(np.eye(32, dtype="float32"))), relay.sum(y, 0)]
        ),
    )

    def build(mod: Any, target: Any, params: Any) -> Any:
        with enable():
            return relay.build(mod, target=target, params=params)

    a, b = draw(16, 64), draw(32, 64)
    run = run_relay_cuda(mod, [a], {"w": b}, build=build).check()
    want = np_softmax(a.astype("float64") @ b.T.astype("float64"))
    np.testing.assert_allclose(run.outputs[0], np.tanh(want), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(run.outputs[1], want.sum(0), rtol=1e-4, atol=1e-6)
    assert ["dense" in launch.name for launch in run.launches].count(False) == 2
