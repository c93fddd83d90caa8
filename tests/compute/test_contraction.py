# SPDX-License-Identifier: Apache-2.0
"""Contractions are recognized as they are stored, and nothing else is taken for one."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.script import tirx as T

from tvm_stitch.compute.anchored import anchored, reads_permuted
from tvm_stitch.graph.reader import read
from tvm_stitch.support.failures import Refusal


@T.prim_func(s_tir=True)
def batched(
    x: T.Buffer((2, 3, 4, 8), "float32"),
    w: T.Buffer((2, 5, 8), "float32"),
    y: T.Buffer((2, 3, 4, 5), "float32"),
):
    for b, i, j, n, k in T.grid(2, 3, 4, 5, 8):
        with T.sblock("product"):
            vb, vi, vj, vn, vk = T.axis.remap("SSSSR", [b, i, j, n, k])
            with T.init():
                y[vb, vi, vj, vn] = T.float32(0)
            y[vb, vi, vj, vn] = y[vb, vi, vj, vn] + x[vb, vi, vj, vk] * w[vb, vn, vk]


def test_axes_stand_for_batches_rows_columns_and_depth() -> None:
    found = anchored(read(batched, "batched"))
    p = found.product
    assert (p.batch, p.rows, p.columns, p.reduction, p.transposed) == (2, 12, 5, 8, True)
    assert (p.left.name, p.right.name, found.epilogue) == ("x", "w", None)


@T.prim_func(s_tir=True)
def with_a_bias(
    x: T.Buffer((4, 8), "float32"),
    w: T.Buffer((8, 5), "float32"),
    b: T.Buffer((5,), "float32"),
    z: T.Buffer((4, 5), "float32"),
):
    y = T.sblock_alloc_buffer((4, 5))
    for i, n, k in T.grid(4, 5, 8):
        with T.sblock("product"):
            vi, vn, vk = T.axis.remap("SSR", [i, n, k])
            with T.init():
                y[vi, vn] = T.float32(0)
            y[vi, vn] = y[vi, vn] + x[vi, vk] * w[vk, vn]
    for i, n in T.grid(4, 5):
        with T.sblock("bias"):
            vi, vn = T.axis.remap("SS", [i, n])
            z[vi, vn] = y[vi, vn] + b[vn]


def test_what_follows_is_a_graph_of_its_own() -> None:
    found = anchored(read(with_a_bias, "with_a_bias"))
    assert found.epilogue is not None
    assert [t.name for t in found.epilogue.inputs] == ["b", "y"]
    assert [op.name for op in found.epilogue.operators] == ["bias"]
    assert found.product.output.producer is None


@T.prim_func(s_tir=True)
def of_a_part(
    x: T.Buffer((4, 10), "float32"), w: T.Buffer((8, 5), "float32"), y: T.Buffer((4, 5), "float32")
):
    for i, n, k in T.grid(4, 5, 8):
        with T.sblock("product"):
            vi, vn, vk = T.axis.remap("SSR", [i, n, k])
            with T.init():
                y[vi, vn] = T.float32(0)
            y[vi, vn] = y[vi, vn] + x[vi, vk] * w[vk, vn]


@T.prim_func(s_tir=True)
def of_one_row_of_each(
    x: T.Buffer((4, 2, 8), "float32"), w: T.Buffer((8, 5), "float32"), y: T.Buffer((4, 1, 5), "float32")
):
    for i, j, n, k in T.grid(4, 1, 5, 8):
        with T.sblock("product"):
            vi, vj, vn, vk = T.axis.remap("SSSR", [i, j, n, k])
            with T.init():
                y[vi, vj, vn] = T.float32(0)
            y[vi, vj, vn] = y[vi, vj, vn] + x[vi, vj, vk] * w[vk, vn]


@T.prim_func(s_tir=True)
def of_one_matrix(
    x: T.Buffer((3, 1, 4, 8), "float32"),
    w: T.Buffer((1, 5, 8), "float32"),
    y: T.Buffer((3, 1, 4, 5), "float32"),
):
    for b, i, j, n, k in T.grid(3, 1, 4, 5, 8):
        with T.sblock("product"):
            vb, vi, vj, vn, vk = T.axis.remap("SSSSR", [b, i, j, n, k])
            with T.init():
                y[vb, vi, vj, vn] = T.float32(0)
            y[vb, vi, vj, vn] = y[vb, vi, vj, vn] + x[vb, vi, vj, vk] * w[0, vn, vk]


def test_axes_of_one_element_are_none() -> None:
    p = anchored(read(of_one_matrix, "f")).product
    assert (p.batch, p.rows, p.columns, p.reduction, p.transposed) == (1, 12, 5, 8, True)


@T.prim_func(s_tir=True)
def of_columns(
    x: T.Buffer((3, 8, 4), "float32"), w: T.Buffer((8, 5), "float32"), y: T.Buffer((3, 4, 5), "float32")
):
    for b, i, n, k in T.grid(3, 4, 5, 8):
        with T.sblock("product"):
            vb, vi, vn, vk = T.axis.remap("SSSR", [b, i, n, k])
            with T.init():
                y[vb, vi, vn] = T.float32(0)
            y[vb, vi, vn] = y[vb, vi, vn] + x[vb, vk, vi] * w[vk, vn]


@T.prim_func(s_tir=True)
def of_permuted_columns(
    x: T.Buffer((3, 4, 8), "float32"), w: T.Buffer((5, 8), "float32"), y: T.Buffer((3, 4, 5), "float32")
):
    u = T.sblock_alloc_buffer((3, 8, 4))
    v = T.sblock_alloc_buffer((3, 4, 8))
    z = T.sblock_alloc_buffer((8, 5))
    for b, i, k in T.grid(3, 8, 4):
        with T.sblock("there"):
            vb, vi, vk = T.axis.remap("SSS", [b, i, k])
            u[vb, vi, vk] = x[vb, vk, vi]
    for b, i, k in T.grid(3, 4, 8):
        with T.sblock("and_back"):
            vb, vi, vk = T.axis.remap("SSS", [b, i, k])
            v[vb, vi, vk] = u[vb, vk, vi]
    for k, n in T.grid(8, 5):
        with T.sblock("right"):
            vk, vn = T.axis.remap("SS", [k, n])
            z[vk, vn] = w[vn, vk]
    for b, i, n, k in T.grid(3, 4, 5, 8):
        with T.sblock("product"):
            vb, vi, vn, vk = T.axis.remap("SSSR", [b, i, n, k])
            with T.init():
                y[vb, vi, vn] = T.float32(0)
            y[vb, vi, vn] = y[vb, vi, vn] + v[vb, vi, vk] * z[vk, vn]


def test_a_left_side_stored_by_columns_has_rows_of_one_axis() -> None:
    p = anchored(read(of_columns, "f")).product
    assert (p.batch, p.rows, p.columns, p.reduction) == (3, 4, 5, 8)
    assert (p.left_transposed, p.transposed, p.shared, p.has_weight) == (True, False, True, True)


def test_permutations_are_followed_to_what_is_in_memory() -> None:
    found = anchored(read(of_permuted_columns, "f"))
    p = found.product
    assert (p.left.name, p.right.name, found.epilogue) == ("x", "w", None)
    assert (p.batch, p.rows, p.columns, p.reduction) == (1, 12, 5, 8)
    assert (p.left_transposed, p.transposed, p.shared) == (False, True, False)


def test_nothing_else_may_be_computed() -> None:
    assert reads_permuted(read(of_permuted_columns, "f")) and reads_permuted(read(of_columns, "f"))
    assert not reads_permuted(read(of_what_it_computes, "f")) and not reads_permuted(read(with_a_bias, "f"))


@T.prim_func(s_tir=True)
def of_columns_of_several_rows(
    x: T.Buffer((2, 3, 8, 4), "float32"),
    w: T.Buffer((2, 8, 5), "float32"),
    y: T.Buffer((2, 3, 4, 5), "float32"),
):
    for b, h, i, n, k in T.grid(2, 3, 4, 5, 8):
        with T.sblock("product"):
            vb, vh, vi, vn, vk = T.axis.remap("SSSSR", [b, h, i, n, k])
            with T.init():
                y[vb, vh, vi, vn] = T.float32(0)
            y[vb, vh, vi, vn] = y[vb, vh, vi, vn] + x[vb, vh, vk, vi] * w[vb, vk, vn]


@T.prim_func(s_tir=True)
def of_columns_of_one_matrix(
    x: T.Buffer((2, 8, 3, 4), "float32"),
    w: T.Buffer((2, 8, 5), "float32"),
    y: T.Buffer((2, 3, 4, 5), "float32"),
):
    for b, h, i, n, k in T.grid(2, 3, 4, 5, 8):
        with T.sblock("product"):
            vb, vh, vi, vn, vk = T.axis.remap("SSSSR", [b, h, i, n, k])
            with T.init():
                y[vb, vh, vi, vn] = T.float32(0)
            y[vb, vh, vi, vn] = y[vb, vh, vi, vn] + x[vb, vk, vh, vi] * w[vb, vk, vn]


@T.prim_func(s_tir=True)
def of_what_it_computes(
    x: T.Buffer((4, 8), "float32"), w: T.Buffer((8, 5), "float32"), y: T.Buffer((4, 5), "float32")
):
    e = T.sblock_alloc_buffer((4, 8))
    for i, k in T.grid(4, 8):
        with T.sblock("exp"):
            vi, vk = T.axis.remap("SS", [i, k])
            e[vi, vk] = T.exp(x[vi, vk])
    for i, n, k in T.grid(4, 5, 8):
        with T.sblock("product"):
            vi, vn, vk = T.axis.remap("SSR", [i, n, k])
            with T.init():
                y[vi, vn] = T.float32(0)
            y[vi, vn] = y[vi, vn] + e[vi, vk] * w[vk, vn]


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (of_a_part, "x is not read along whole axes"),
        (of_one_row_of_each, "x is not read along whole axes"),
        (of_columns_of_one_matrix, "x is not read row by row"),
        (of_columns_of_several_rows, "x is not read matrix by matrix"),
        (of_what_it_computes, "e is computed in the same kernel"),
    ],
)
def test_others_are_refused(func: Any, reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        anchored(read(func, "f"))


@T.prim_func(s_tir=True)
def of_a_vector(
    x: T.Buffer((2, 30, 8), "float32"), w: T.Buffer((2, 8, 1), "float32"), y: T.Buffer((2, 30, 1), "float32")
):
    for b, i, n, k in T.grid(2, 30, 1, 8):
        with T.sblock("product"):
            vb, vi, vn, vk = T.axis.remap("SSSR", [b, i, n, k])
            with T.init():
                y[vb, vi, vn] = T.float32(0)
            y[vb, vi, vn] = y[vb, vi, vn] + x[vb, vi, vk] * w[vb, vk, vn]


def test_a_matrix_times_a_vector_has_the_rows_as_columns() -> None:
    p = anchored(read(of_a_vector, "f")).product
    assert (p.batch, p.rows, p.columns, p.reduction) == (2, 1, 30, 8)
    assert (p.left.name, p.right.name, p.transposed, p.chosen) == ("w", "x", True, None)


@T.prim_func(s_tir=True)
def of_vectors(
    x: T.Buffer((2, 1, 8), "float32"), w: T.Buffer((2, 8, 1), "float32"), y: T.Buffer((2, 1, 1), "float32")
):
    for b, i, n, k in T.grid(2, 1, 1, 8):
        with T.sblock("product"):
            vb, vi, vn, vk = T.axis.remap("SSSR", [b, i, n, k])
            with T.init():
                y[vb, vi, vn] = T.float32(0)
            y[vb, vi, vn] = y[vb, vi, vn] + x[vb, vi, vk] * w[vb, vk, vn]


def test_vectors_times_vectors_stay_a_batch() -> None:
    p = anchored(read(of_vectors, "f")).product
    assert (p.batch, p.rows, p.columns, p.reduction) == (2, 1, 1, 8)
