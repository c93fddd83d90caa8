# SPDX-License-Identifier: Apache-2.0
"""Programs and hand-written tensor functions chosen to break a compiler, compared with stock TVM."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as Rx
from tvm.script import tirx as T

import tvm_stitch
from tests.against_stock import (
    LLVM,
    assert_same,
    check_against_stock,
    drawn,
    module_for,
    module_of,
    run_on_llvm,
)

i64 = T.int64


@I.ir_module(s_tir=True)
class _Program:
    @T.prim_func(private=True, s_tir=True)
    def stitch_add(A: T.Buffer((i64(4), i64(8)), "float32"), B: T.Buffer((i64(4), i64(8)), "float32")):
        for i, j in T.grid(i64(4), i64(8)):
            with T.sblock("b"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * T.float32(7)

    @Rx.function
    def stitch_add_exp(a: Rx.Tensor((4, 8), "float32")) -> Rx.Tensor((4, 8), "float32"):
        b = Rx.multiply(a, Rx.const(3.0))
        return b

    @Rx.function
    def main(a: Rx.Tensor((4, 8), "float32")):
        cls = _Program
        with Rx.dataflow():
            b = Rx.add(a, a)
            e = Rx.exp(b)
            c = Rx.call_tir(cls.stitch_add, (e,), out_ty=Rx.Tensor((4, 8), "float32"))
            d = Rx.nn.softmax(c)
            f = cls.stitch_add_exp(d)
            Rx.output(f)
        return f


@I.ir_module(s_tir=True)
class _Recursion:
    @Rx.function
    def main(a: Rx.Tensor((4, 8), "float32"), n: Rx.Tensor((), "int32")) -> Rx.Tensor((4, 8), "float32"):
        cls = _Recursion
        c = Rx.greater(n, Rx.const(0, "int32"))
        if c:
            b = Rx.multiply(Rx.exp(a), Rx.const(0.5))
            m = Rx.subtract(n, Rx.const(1, "int32"))
            r = cls.main(b, m)
        else:
            r = Rx.add(a, a)
        return r


def test_functions_with_the_names_that_stitching_gives() -> None:
    check_against_stock(_Program, [drawn(4, 8)])


def test_branches_and_recursion() -> None:
    check_against_stock(_Recursion, [drawn(4, 8), np.array(3, "int32")], cuda=False)


def test_without_a_dataflow_block() -> None:
    mod = module_of(
        lambda bb, v: [bb.emit(R.exp(bb.emit(R.add(v, v)))), bb.emit(R.sum(v, 1))],
        ((4, 8), "float32"),
        dataflow=False,
    )
    check_against_stock(mod, [drawn(4, 8)])


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_optimization_levels(level: int) -> None:
    x = drawn(4, 8)
    with tvm.transform.PassContext(opt_level=level):
        check_against_stock(module_for(lambda bb, v: R.nn.softmax(R.exp(bb.emit(R.add(v, v)))), x), [x])


def test_compiling_in_several_threads() -> None:
    x = drawn(4, 8)
    mods = [
        module_for(lambda bb, v, i=i: R.nn.softmax(R.add(R.exp(v), R.multiply(v, relax.const(float(i))))), x)
        for i in range(4)
    ]
    # TVM legalizes operators through a process-wide tag ("nested op_tag is not allowed"), stock pipeline or ours.
    mods = [relax.transform.LegalizeOps()(mod) for mod in mods]
    found: dict[int, list[np.ndarray]] = {}

    def work(i: int) -> None:
        found[i] = run_on_llvm(mods[i], tvm_stitch.relax.pipeline(LLVM), [x])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        assert_same(found[i], run_on_llvm(mods[i], relax.get_default_pipeline(LLVM), [x]))


@T.prim_func(private=True, s_tir=True)
def _guarded_division(
    A: T.Buffer((i64(37),), "int32"), C: T.Buffer((i64(37),), "int32"), B: T.Buffer((i64(37),), "int32")
):
    for i in range(i64(37)):
        with T.sblock("s"):
            vi = T.axis.spatial(i64(37), i)
            B[vi] = T.if_then_else(C[vi] != 0, T.truncdiv(A[vi], C[vi]), T.int32(-1))


@T.prim_func(private=True, s_tir=True)
def _guarded_gather(
    A: T.Buffer((i64(37),), "float32"),
    C: T.Buffer((i64(5), i64(37)), "int64"),
    B: T.Buffer((i64(5),), "float32"),
):
    for i, k in T.grid(i64(5), i64(37)):
        with T.sblock("s"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + T.if_then_else(C[vi, vk] >= i64(0), A[C[vi, vk]], T.float32(-1))


@T.prim_func(private=True, s_tir=True)
def _written_twice(A: T.Buffer((i64(8),), "float32"), B: T.Buffer((i64(8),), "float32")):
    for i in range(i64(8)):
        with T.sblock("s"):
            vi = T.axis.spatial(i64(8), i)
            B[vi] = A[vi]
    for i in range(i64(4)):
        with T.sblock("t"):
            vi = T.axis.spatial(i64(4), i)
            B[vi] = A[vi] * T.float32(2)


@T.prim_func(private=True, s_tir=True)
def _subtracts(A: T.Buffer((i64(4), i64(8)), "float32"), B: T.Buffer((i64(4),), "float32")):
    for i, k in T.grid(i64(4), i64(8)):
        with T.sblock("s"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] - A[vi, vk]


@T.prim_func(private=True, s_tir=True)
def _least_is_zero(A: T.Buffer((i64(4), i64(8)), "float32"), B: T.Buffer((i64(4),), "float32")):
    for i, k in T.grid(i64(4), i64(8)):
        with T.sblock("s"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = T.max(B[vi], A[vi, vk])


def _far(*shape: int) -> np.ndarray:
    index = drawn(*shape, dtype="int64", high=37)
    index[..., ::3] = -(10**14)
    return index


@pytest.mark.parametrize(
    "func, out, inputs",
    [
        (_guarded_division, ((37,), "int32"), [drawn(37, dtype="int32"), drawn(37, dtype="int32", high=3)]),
        (_guarded_gather, ((5,), "float32"), [drawn(37), _far(5, 37)]),
        (_written_twice, ((8,), "float32"), [drawn(8)]),
        (_subtracts, ((4,), "float32"), [drawn(4, 8)]),
        (_least_is_zero, ((4,), "float32"), [drawn(4, 8) - np.float32(2)]),
    ],
    ids=["guarded_division", "guarded_gather", "written_twice", "subtracts", "least_is_zero"],
)
def test_hand_written(func: Any, out: tuple[tuple[int, ...], str], inputs: list[np.ndarray]) -> None:
    def body(bb: Any, *values: Any) -> Any:
        result = bb.emit(relax.call_tir(bb.add_func(func, "by_hand"), list(values), relax.TensorType(*out)))
        return R.add(result, result)

    # A tensor that is written twice is left to TVM with the addition. The emulator lacks the memory its host
    # code allocates.
    check_against_stock(module_for(body, *inputs), inputs, cuda=func is not _written_twice)
