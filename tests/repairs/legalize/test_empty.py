# SPDX-License-Identifier: Apache-2.0
"""Tensors without elements: calls that make them go, what reads them stays right, on both targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import tirx as T

import tvm_stitch
from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import build, legalize, symbol
from tests.repairs import faults
from tvm_stitch import StitchConfig
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.repairs.legalize.empty import SkipEmpty

F32 = "float32"


def calls(mod: tvm.IRModule) -> list[str]:
    bindings = mod["main"].body.blocks[0].bindings
    return [b.value.op.name for b in bindings if isinstance(b.value, relax.Call)]


def test_what_is_empty_is_allocated_only() -> None:
    def body(emit: Any, x: Any, z: Any) -> Any:
        y = emit(R.exp(x))
        return [R.permute_dims(y, [1, 0]), R.concat([y, z], 0)]

    before = legalize(build(body, ((0, 6), F32), ((2, 6), F32)))
    assert calls(before) == ["relax.call_tir"] * 3
    assert calls(SkipEmpty()(before)) == ["relax.builtin.alloc_tensor"] * 2 + ["relax.call_tir"]


def test_an_empty_part_is_not_computed() -> None:
    before = legalize(build(lambda emit, x: [emit(R.split(x, [8], 0))], ((8, 6), F32)))
    assert before.script().count('T.sblock("T_split') == 2
    assert SkipEmpty()(before).script().count('T.sblock("T_split') == 1


@T.prim_func(s_tir=True)
def one_more_than_a_sum_of_nothing(
    x: T.Buffer((4, 0), "float32"), y: T.Buffer((4,), "float32"), z: T.Buffer((4,), "float32")
):
    for i, k in T.grid(4, 0):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi, vk]
    for i in range(4):
        with T.sblock("more"):
            vi = T.axis.spatial(4, i)
            z[vi] = y[vi] + T.float32(1)


@T.prim_func(s_tir=True)
def one_more_than_zero(
    x: T.Buffer((4, 0), "float32"), y: T.Buffer((4,), "float32"), z: T.Buffer((4,), "float32")
):
    for i in range(4):
        with T.sblock("sum"):
            vi = T.axis.spatial(4, i)
            y[vi] = T.float32(0)
    for i in range(4):
        with T.sblock("more"):
            vi = T.axis.spatial(4, i)
            z[vi] = y[vi] + T.float32(1)


def test_a_reduction_of_nothing_is_what_it_begins_with() -> None:
    before, expected = (
        tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        for func in (one_more_than_a_sum_of_nothing, one_more_than_zero)
    )
    tvm.ir.assert_structural_equal(SkipEmpty()(before), expected)


def test_other_extents_may_be_symbolic() -> None:
    def body(emit: Any, x: Any) -> Any:
        return [R.exp(emit(R.permute_dims(x, [1, 2, 0])))]

    before = legalize(build(body, ((1, 0, symbol("m")), F32)))
    assert calls(SkipEmpty()(before)) == ["relax.builtin.alloc_tensor"] * 2


@pytest.mark.parametrize("m", [0, 3])
def test_a_view_with_an_extent_of_zero_beside_a_symbol(m: int) -> None:
    def body(emit: Any, x: Any, s: Any, y: Any) -> Any:
        moved = emit(R.permute_dims(x, [1, 2, 0]))
        return [R.divide(s, emit(R.multiply(moved, s))), R.exp(y)]

    mod = build(body, ((1, 0, symbol("m")), F32), ((), F32), ((4, 5), F32))
    y = np.random.default_rng(0).random((4, 5), dtype=F32)
    check(mod, [np.zeros((1, 0, m), F32), np.array(2, F32), y], [np.zeros((0, m, 1)), np.exp(y)])
    recorder = Recorder()
    tvm.compile(mod, "llvm", relax_pipeline=pipeline("llvm", recorder=recorder))
    assert not recorder.declined and len(recorder.plans) == 1


def test_others_are_left_as_they_are() -> None:
    mod = legalize(build(lambda emit, x: [R.exp(x)], ((symbol(), 6), F32)))
    tvm.ir.assert_structural_equal(SkipEmpty()(mod), mod)


Body = Callable[..., Any]
STATIC: dict[str, tuple[Body, list[tuple[int, ...]], Callable[..., Any]]] = {
    "a view before a matmul": (
        lambda emit, x, w: [R.matmul(emit(R.reshape(emit(R.exp(x)), (0, 6))), w)], [(0, 2, 3), (6, 4)],
        lambda x, w: [np.zeros((0, 4))],
    ),
    "transpose": (
        lambda emit, x: [R.exp(emit(R.permute_dims(emit(R.exp(x)), [1, 0])))], [(0, 6)], lambda x: [np.zeros((6, 0))],
    ),
    "sums": (
        lambda emit, x: [R.sum(emit(R.exp(x)), 0), R.exp(emit(R.sum(x, 1)))], [(0, 6)],
        lambda x: [np.zeros(6), np.zeros(0)],
    ),
    "concat": (
        lambda emit, x, y: [R.exp(emit(R.concat([emit(R.exp(x)), y], 0)))], [(0, 6), (2, 6)], lambda x, y: [np.exp(y)],
    ),
    "split": (
        lambda emit, x: [
            R.exp(emit(relax.TupleGetItem(parts, i))) for parts in [emit(R.split(x, 2, 1))] for i in (0, 1)
        ],
        [(0, 6)], lambda x: [np.zeros((0, 3))] * 2,
    ),
    "split with an empty part": (
        lambda emit, x: [
            R.exp(x), *(relax.TupleGetItem(parts, i) for parts in [emit(R.split(x, [6], 1))] for i in (0, 1))
        ],
        [(4, 6)], lambda x: [np.exp(x), x, np.zeros((4, 0))],
    ),
    "a sum of nothing beside an empty result": (
        lambda emit, x: [
            R.sum(emit(relax.TupleGetItem(parts, 1)), 1) for parts in [emit(R.split(x, [6], 1))]
        ],
        [(4, 6)], lambda x: [np.zeros(4)],
    ),
    "other reductions": (
        lambda emit, x: [R.max(x, 1), R.prod(x, 1), R.exp(emit(R.min(x, [0, 1])))], [(4, 0)],
        lambda x: [
            np.full(4, np.finfo(F32).min), np.ones(4), np.array(np.inf, F32)
        ],
    ),
    "a reduction of two axes, one of them empty": (
        lambda emit, x: [R.sum(x, [0, 2]), R.sum(x, 0)], [(0, 3, 5)], lambda x: [np.zeros(3), np.zeros((3, 5))],
    ),
    "a product without depth": (
        lambda emit, x, y, b: [R.nn.relu(emit(R.add(emit(R.matmul(x, y)), b)))], [(4, 0), (0, 6), (6,)],
        lambda x, y, b: [np.broadcast_to(b, (4, 6))],
    ),
    "products without depth, in a batch and in a half type": (
        lambda emit, x, y: [R.matmul(x, y), R.matmul(*(emit(R.astype(z, "float16")) for z in (x, y)))],
        [(2, 4, 0), (2, 0, 6)], lambda x, y: [np.zeros((2, 4, 6))] * 2,
    ),
    "products of integers without depth": (
        lambda emit, x, y: [R.matmul(*(emit(R.astype(z, "int8")) for z in (x, y)), out_dtype="int32")],
        [(4, 0), (0, 6)], lambda x, y: [np.zeros((4, 6))],
    ),
    "a product without rows": (lambda emit, x, y: [R.exp(emit(R.matmul(x, y)))], [(0, 4), (4, 6)],
        lambda x, y: [np.zeros((0, 6))],
    ),
    "a convolution without channels": (
        lambda emit, x, w, y: [R.add(emit(R.nn.conv2d(x, w, padding=1)), y)],
        [(1, 0, 6, 6), (4, 0, 3, 3), (1, 4, 1, 1)], lambda x, w, y: [np.broadcast_to(y, (1, 4, 6, 6))],
    ),
    "a convolution without images": (
        lambda emit, x, w: [R.nn.conv2d(x, w)], [(0, 3, 6, 6), (4, 3, 3, 3)], lambda x, w: [np.zeros((0, 4, 4, 4))],
    ),
    "beside others": (
        lambda emit, x, y: [R.exp(emit(R.reshape(x, (0,)))), R.exp(y)], [(0, 6), (4, 5)],
        lambda x, y: [np.zeros(0), np.exp(y)],
    ),
}  # fmt: skip


LEFT = {"split with an empty part": "a parameter is both read and written"}
"""Reasons of cases that are left to TVM: data is moved to where there is none."""


def check(
    mod: tvm.IRModule, inputs: list[np.ndarray], wanted: list[np.ndarray], left: str | None = None
) -> None:
    """Check the numbers on both targets. Nothing is left to TVM, or one operator for the reason ``left``."""
    found = tvm_stitch.explain(mod, "llvm").to_dict()["left"]
    assert list(found.values()) == ([] if left is None else [left])
    strict = StitchConfig(strict=left is None)
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm", relax_pipeline=pipeline("llvm", strict)), tvm.cpu())
    got = vm["main"](*map(tvm.runtime.tensor, inputs))
    outputs = [got.numpy()] if hasattr(got, "numpy") else [o.numpy() for o in got]
    target = emulated_target()
    emulated = run_cuda(mod, inputs, target=target, relax_pipeline=pipeline(target, strict)).check().outputs
    for found in (outputs, emulated):
        assert [o.shape for o in found] == [w.shape for w in wanted]
        for o, w in zip(found, wanted):
            np.testing.assert_allclose(o, w, rtol=1e-5)


@pytest.mark.parametrize("name", STATIC)
def test_static_extents_of_zero(name: str) -> None:
    body, shapes, expected = STATIC[name]
    inputs = [np.random.default_rng(0).random(s, dtype=F32) for s in shapes]
    check(build(body, *[(s, F32) for s in shapes]), inputs, expected(*inputs), LEFT.get(name))


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (0, 0)], ids=str)
def test_symbolic_extents_that_are_zero(sizes: tuple[int, int]) -> None:
    """Reshapes and a softmax of a flattened tensor in one kernel, which divides by extents."""
    n, m = symbol("n"), symbol("m")

    def body(emit: Any, x: Any) -> Any:
        y = emit(R.exp(emit(R.reshape(emit(R.exp(x)), (n * m, 8)))))
        heads = emit(R.permute_dims(emit(R.reshape(y, (n, m, 2, 4))), [0, 2, 1, 3]))
        return [R.nn.softmax(y, -1), R.exp(heads)]

    x = np.zeros((*sizes, 8), F32)
    check(build(body, ((n, m, 8), F32)), [x], [np.zeros((0, 8)), np.zeros((sizes[0], 2, sizes[1], 4))])


@pytest.mark.parametrize("shape", [(2, 0, 3), (6, 0), (0,)])
def test_constants_without_elements(shape: tuple[int, ...]) -> None:
    constant = relax.const(np.zeros(shape, F32))
    mod = build(
        lambda emit, x: [emit(R.exp(x)), emit(constant), R.exp(emit(R.add(constant, constant)))], ((4,), F32)
    )
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm", relax_pipeline=pipeline("llvm")), tvm.cpu())
    results = vm["main"](tvm.runtime.tensor(np.zeros(4, F32)))
    assert [r.shape for r in results] == [(4,), shape, shape]
    alone = build(lambda emit, x: [x, emit(constant)], ((4,), F32))  # without any kernel
    vm = relax.VirtualMachine(tvm.compile(alone, "llvm", relax_pipeline=pipeline("llvm")), tvm.cpu())
    assert vm["main"](tvm.runtime.tensor(np.zeros(4, F32)))[1].shape == shape


NO_ROWS = build(lambda emit, x: R.permute_dims(emit(R.exp(x)), [1, 0]), ((0, 4), F32))


def test_fault() -> None:
    faults.needed(faults.raises(lambda: tvm.compile(NO_ROWS, faults.CUDA)), "legalize/empty.py")


def test_repair() -> None:
    of_functions = relax.transform.LegalizeOps()(NO_ROWS)
    assert tvm_stitch.compile(NO_ROWS, faults.CUDA)
    assert tvm_stitch.compile(of_functions, faults.CUDA)
    with faults.without("SkipEmpty"):
        assert faults.raises(lambda: tvm_stitch.compile(of_functions, faults.CUDA))
