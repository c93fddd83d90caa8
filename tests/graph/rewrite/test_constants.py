# SPDX-License-Identifier: Apache-2.0
"""Scalar constants in blocks of their own go into their readers. Other values stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm.script import tirx as T

from stitch_testing.reference.graph_eval import evaluate_graph
from stitch_testing.validate import validate
from tests.graph.helpers import H200, single
from tvm_stitch import compat
from tvm_stitch.codegen.emit import emit
from tvm_stitch.device import device_model
from tvm_stitch.graph.ir import OpClass, Span, StitchGraph
from tvm_stitch.graph.reader import read
from tvm_stitch.graph.rewrite.constants import inline_constants, with_numbers
from tvm_stitch.plan.in_block import plan_in_block

F32 = "float32"


def divided(value: float) -> Any:
    """b = a / value, the value in a block of its own."""

    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(4), T.int64(8)), F32), b: T.Buffer((T.int64(4), T.int64(8)), F32)) -> None:
        c = T.sblock_alloc_buffer((), F32)
        with T.sblock("c"):
            T.axis.spatial(1, T.int64(0))
            c[()] = T.float32(value)
        for i, j in T.grid(T.int64(4), T.int64(8)):
            with T.sblock("b"):
                vi, vj = T.axis.remap("SS", [i, j])
                b[vi, vj] = a[vi, vj] / c[()]

    return func


def check(op_graph: StitchGraph, *inputs: np.ndarray) -> list[np.ndarray]:
    validate(op_graph)
    return evaluate_graph(op_graph, list(inputs))


def test_a_constant_is_part_of_what_reads_it() -> None:
    for value in (3.0, 1e-12):
        op_graph = read(divided(value))
        (op,) = op_graph.operators
        assert op.op_class is OpClass.LIGHT and [a.span for a in op.accesses] == [Span.ALL]
        assert compat.kind(op.value.b) == "FloatImm" and compat.dtype_of(op.value.b) == F32
        assert np.float32(op.value.b.value) == np.float32(value)
        x = np.random.default_rng(0).standard_normal((4, 8)).astype(F32)
        np.testing.assert_allclose(check(op_graph, x)[0], x / np.float64(np.float32(value)))


def test_the_kernel_needs_no_such_block() -> None:
    func = divided(2.5)
    emitted = emit(func, plan_in_block(read(func, "f"), device_model("llvm"))).with_attr("global_symbol", "f")
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(F32)
    a, b = tvm.runtime.tensor(x), tvm.runtime.tensor(np.zeros_like(x))
    tvm.compile(tvm.IRModule({"f": emitted}), target="llvm")["f"](a, b)
    np.testing.assert_allclose(b.numpy(), x / 2.5, rtol=1e-6)
    plan_in_block(read(func, "f"), H200)


def test_chains_of_constants_keep_their_casts() -> None:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(6),), F32), b: T.Buffer((T.int64(6),), F32)) -> None:
        c = T.sblock_alloc_buffer((), F32)
        half = T.sblock_alloc_buffer((), "float16")
        wide = T.sblock_alloc_buffer((T.int64(1), T.int64(1)), F32)
        with T.sblock("c"):
            T.axis.spatial(1, T.int64(0))
            c[()] = T.float32(0.1)
        with T.sblock("half"):
            T.axis.spatial(1, T.int64(0))
            half[()] = T.Cast("float16", c[()])
        for i, j in T.grid(T.int64(1), T.int64(1)):
            with T.sblock("wide"):
                vi, vj = T.axis.remap("SS", [i, j])
                wide[vi, vj] = T.Cast(F32, half[()])
        for i in range(T.int64(6)):
            with T.sblock("b"):
                vi = T.axis.spatial(T.int64(6), i)
                b[vi] = a[vi] + wide[T.int64(0), T.int64(0)]

    op_graph = read(func)
    assert [op.name for op in op_graph.operators] == ["b"]
    x = np.arange(6, dtype=F32)
    np.testing.assert_array_equal(check(op_graph, x)[0], x + np.float64(np.float16(0.1)))


def test_a_constant_index_is_no_gather() -> None:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(5), T.int64(8)), F32), b: T.Buffer((T.int64(8),), F32)) -> None:
        c = T.sblock_alloc_buffer((), "int64")
        with T.sblock("c"):
            T.axis.spatial(1, T.int64(0))
            c[()] = T.int64(3)
        for j in range(T.int64(8)):
            with T.sblock("b"):
                vj = T.axis.spatial(T.int64(8), j)
                b[vj] = a[c[()], vj]

    op_graph = read(func)
    (op,) = op_graph.operators
    (access,) = op.accesses
    assert compat.int_value(access.indices[0]) == 3 and not access.guarded
    x = np.arange(40, dtype=F32).reshape(5, 8)
    np.testing.assert_array_equal(check(op_graph, x)[0], x[3])


def test_an_output_stays_an_operator() -> None:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(6),), F32), c: T.Buffer((), F32), b: T.Buffer((T.int64(6),), F32)) -> None:
        with T.sblock("c"):
            T.axis.spatial(1, T.int64(0))
            c[()] = T.float32(4)
        for i in range(T.int64(6)):
            with T.sblock("b"):
                vi = T.axis.spatial(T.int64(6), i)
                b[vi] = a[vi] * c[()]

    op_graph = read(func)
    assert [op.name for op in op_graph.operators] == ["c", "b"]
    assert not op_graph.operators[0].output.consumers and op_graph.operators[1].inputs == op_graph.inputs
    x = np.arange(6, dtype=F32)
    c, b = check(op_graph, x)
    assert c == 4
    np.testing.assert_array_equal(b, 4 * x)


def test_what_is_no_scalar_constant_stays() -> None:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(6),), F32), b: T.Buffer((T.int64(6),), F32)) -> None:
        root = T.sblock_alloc_buffer((), F32)
        ones = T.sblock_alloc_buffer((T.int64(6),), F32)
        total = T.sblock_alloc_buffer((), F32)
        first = T.sblock_alloc_buffer((), F32)
        with T.sblock("root_of_two"):
            T.axis.spatial(1, T.int64(0))
            root[()] = T.sqrt(T.float32(2))
        for i in range(T.int64(6)):
            with T.sblock("ones"):
                vi = T.axis.spatial(T.int64(6), i)
                ones[vi] = T.float32(1)
        for k in range(T.int64(6)):
            with T.sblock("total"):
                T.axis.reduce(T.int64(6), k)
                with T.init():
                    total[()] = T.float32(0)
                total[()] = total[()] + T.float32(1)
        with T.sblock("first"):
            T.axis.spatial(1, T.int64(0))
            first[()] = a[T.int64(0)]
        for i in range(T.int64(6)):
            with T.sblock("b"):
                vi = T.axis.spatial(T.int64(6), i)
                b[vi] = a[vi] * root[()] + ones[vi] - total[()] * first[()]

    op_graph = read(func)
    assert [op.name for op in op_graph.operators] == ["root_of_two", "ones", "total", "first", "b"]
    assert inline_constants(op_graph) is op_graph


def test_a_graph_without_constants_is_itself() -> None:
    from tvm.relax import op as R

    op_graph = single(lambda emit, x: R.exp(x), ((4,), F32))
    assert inline_constants(op_graph) is op_graph


def test_numbers_take_the_place_of_inputs() -> None:
    """A value that they make constant goes into its readers as well. Inputs that others read stay."""

    @T.prim_func(private=True, s_tir=True)
    def func(
        a: T.Buffer((T.int64(6),), F32),
        c: T.Buffer((), F32),
        k: T.Buffer((T.int64(1),), F32),
        b: T.Buffer((T.int64(6),), F32),
    ):
        half = T.sblock_alloc_buffer((), F32)
        with T.sblock("half"):
            T.axis.spatial(1, T.int64(0))
            half[()] = c[()] * T.float32(0.5)
        for i in T.grid(T.int64(6)):
            with T.sblock("b"):
                v = T.axis.spatial(T.int64(6), i)
                b[v] = T.Select(a[v] < half[()], k[0], a[v])

    op_graph = read(func)
    a, c, k = op_graph.inputs
    made = with_numbers(op_graph, {c: compat.const(3.0, F32), k: compat.const(float("-inf"), F32)})
    assert [t.name for t in made.inputs] == ["a"] and len(made.operators) == 1
    assert [t.name for t in with_numbers(op_graph, {k: compat.const(0.0, F32)}).inputs] == ["a", "c"]
    x = np.arange(6, dtype=F32)
    np.testing.assert_array_equal(check(made, x)[0], np.where(x < 1.5, -np.inf, x))
    assert [a, c, k] == op_graph.inputs and len(op_graph.operators) == 2
