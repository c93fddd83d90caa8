# SPDX-License-Identifier: Apache-2.0
"""PrimFuncs that the reader declines, each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvm import tirx
from tvm.relax import op as R
from tvm.script import tirx as T

from tests.graph.helpers import build, legalize, prim_funcs
from tvm_stitch.graph.reader import Unreadable, read

F32 = "float32"


def tuple_argmax() -> tirx.PrimFunc:
    (func,) = prim_funcs(legalize(build(lambda emit, x: R.argmax(x, 1), ((4, 9), F32)))).values()
    return func


def test_tuple_reductions_are_declined_with_a_reason() -> None:
    with pytest.raises(Unreadable, match="block .* holds (SeqStmt|AttrStmt|LetStmt|Bind), not one store"):
        read(tuple_argmax())


def test_scatters_are_declined() -> None:
    def body(emit: Any, x: Any, i: Any, u: Any) -> Any:
        return R.scatter_elements(x, i, u)

    made = legalize(build(body, ((4, 9), F32), ((2, 9), "int64"), ((2, 9), F32)))
    (func,) = prim_funcs(made).values()
    with pytest.raises(Unreadable):
        read(func)


def scheduled() -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(8),), F32), b: T.Buffer((T.int64(8),), F32)) -> None:
        for i in T.parallel(T.int64(8)):
            with T.sblock("b"):
                v = T.axis.spatial(T.int64(8), i)
                b[v] = a[v] + T.float32(1)

    return func


def predicated() -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(8),), F32), b: T.Buffer((T.int64(8),), F32)) -> None:
        for i in T.serial(T.int64(8)):
            with T.sblock("b"):
                v = T.axis.spatial(T.int64(8), i)
                T.where(i < 5)
                b[v] = a[v] + T.float32(1)

    return func


def shifted_binding() -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(9),), F32), b: T.Buffer((T.int64(9),), F32)) -> None:
        for i in T.serial(T.int64(8)):
            with T.sblock("b"):
                v = T.axis.spatial(T.int64(9), i + 1)
                b[v] = a[v] + T.float32(1)

    return func


def scatter_store() -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(8),), F32), b: T.Buffer((T.int64(16),), F32)) -> None:
        for i in T.serial(T.int64(8)):
            with T.sblock("b"):
                v = T.axis.spatial(T.int64(8), i)
                b[v * 2] = a[v]

    return func


def twice_written() -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(8),), F32), b: T.Buffer((T.int64(8),), F32)) -> None:
        for i in T.serial(T.int64(8)):
            with T.sblock("b"):
                v = T.axis.spatial(T.int64(8), i)
                b[v] = a[v]
        for i in T.serial(T.int64(8)):
            with T.sblock("c"):
                v = T.axis.spatial(T.int64(8), i)
                b[v] = a[v] * T.float32(2)

    return func


def in_place() -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(8),), F32), b: T.Buffer((T.int64(8),), F32)) -> None:
        for i in T.serial(T.int64(8)):
            with T.sblock("b"):
                v = T.axis.spatial(T.int64(8), i)
                b[v] = a[v] + b[v]

    return func


def without_init() -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(8), T.int64(4)), F32), b: T.Buffer((T.int64(8),), F32)) -> None:
        for i, k in T.grid(T.int64(8), T.int64(4)):
            with T.sblock("b"):
                v, r = T.axis.remap("SR", [i, k])
                b[v] = b[v] + a[v, r]

    return func


def init_of_a_load() -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(
        a: T.Buffer((T.int64(8), T.int64(4)), F32),
        c: T.Buffer((T.int64(8),), F32),
        b: T.Buffer((T.int64(8),), F32),
    ) -> None:
        for i, k in T.grid(T.int64(8), T.int64(4)):
            with T.sblock("b"):
                v, r = T.axis.remap("SR", [i, k])
                with T.init():
                    b[v] = c[v]
                b[v] = b[v] + a[v, r]

    return func


def odd_combiner() -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(8), T.int64(4)), F32), b: T.Buffer((T.int64(8),), F32)) -> None:
        for i, k in T.grid(T.int64(8), T.int64(4)):
            with T.sblock("b"):
                v, r = T.axis.remap("SR", [i, k])
                with T.init():
                    b[v] = T.float32(0)
                b[v] = b[v] - a[v, r]

    return func


def loop_from_one() -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(9),), F32), b: T.Buffer((T.int64(9),), F32)) -> None:
        for i in T.serial(T.int64(1), T.int64(9)):
            with T.sblock("b"):
                v = T.axis.spatial(T.int64(9), i)
                b[v] = a[v] + T.float32(1)

    return func


def axis_from_one() -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(9),), F32), b: T.Buffer((T.int64(9),), F32)) -> None:
        for i in T.serial(T.int64(9)):
            with T.sblock("b"):
                v = T.axis.spatial((T.int64(1), T.int64(9)), i)
                b[v] = a[v] + T.float32(1)

    return func


def part_of_a_loop() -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(9),), F32), b: T.Buffer((T.int64(9),), F32)) -> None:
        for i in T.serial(T.int64(8)):
            with T.sblock("b"):
                v = T.axis.spatial(T.int64(9), i)
                b[v] = a[v] + T.float32(1)

    return func


def repeated_loop() -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(9),), F32), b: T.Buffer((T.int64(9),), F32)) -> None:
        for i, _ in T.grid(T.int64(9), T.int64(4)):
            with T.sblock("b"):
                v = T.axis.spatial(T.int64(9), i)
                b[v] = a[v] + T.float32(1)

    return func


def several_writes() -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(8), T.int64(4)), F32), b: T.Buffer((T.int64(8),), F32)) -> None:
        for i, k in T.grid(T.int64(8), T.int64(4)):
            with T.sblock("b"):
                v, w = T.axis.remap("SS", [i, k])
                b[v] = a[v, w]

    return func


def init_elsewhere() -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(8), T.int64(4)), F32), b: T.Buffer((T.int64(8),), F32)) -> None:
        for i, k in T.grid(T.int64(8), T.int64(4)):
            with T.sblock("b"):
                v, r = T.axis.remap("SR", [i, k])
                with T.init():
                    b[T.int64(7) - v] = T.float32(0)
                b[v] = b[v] + a[v, r]

    return func


def accumulates_elsewhere() -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(8), T.int64(4)), F32), b: T.Buffer((T.int64(8),), F32)) -> None:
        for i, k in T.grid(T.int64(8), T.int64(4)):
            with T.sblock("b"):
                v, r = T.axis.remap("SR", [i, k])
                with T.init():
                    b[v] = T.float32(0)
                b[v] = b[T.int64(7) - v] + a[v, r]

    return func


def sum_from_one() -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(8), T.int64(4)), F32), b: T.Buffer((T.int64(8),), F32)) -> None:
        for i, k in T.grid(T.int64(8), T.int64(4)):
            with T.sblock("b"):
                v, r = T.axis.remap("SR", [i, k])
                with T.init():
                    b[v] = T.float32(1)
                b[v] = b[v] + a[v, r]

    return func


def product_from_zero() -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(8), T.int64(4)), F32), b: T.Buffer((T.int64(8),), F32)) -> None:
        for i, k in T.grid(T.int64(8), T.int64(4)):
            with T.sblock("b"):
                v, r = T.axis.remap("SR", [i, k])
                with T.init():
                    b[v] = T.float32(0)
                b[v] = b[v] * a[v, r]

    return func


REASONS: dict[Callable[[], tirx.PrimFunc], str] = {
    scheduled: "already scheduled",
    predicated: "has a predicate",
    shifted_binding: "binds an axis to an expression",
    scatter_store: "does not write one element per point",
    twice_written: "writes a buffer that another block wrote",
    in_place: "reads what it writes",
    without_init: "reduces without an init",
    init_of_a_load: "initialises with more than a constant",
    odd_combiner: "combines with Sub",
    loop_from_one: "does not start at 0",
    axis_from_one: "has an axis that does not start at 0",
    part_of_a_loop: "has an axis of another extent than its loop",
    repeated_loop: "repeats in a loop that no axis names",
    several_writes: "writes an element more than once",
    init_elsewhere: "initialises another element than it accumulates into",
    accumulates_elsewhere: "accumulates from another element of its output|does not accumulate",
    sum_from_one: "starts a sum from .*, which is not its identity",
    product_from_zero: "starts a prod from .*, which is not its identity",
}


@pytest.mark.parametrize("make", REASONS, ids=lambda f: f.__name__)
def test_reasons(make: Callable[[], tirx.PrimFunc]) -> None:
    with pytest.raises(Unreadable, match=REASONS[make]):
        read(make())
