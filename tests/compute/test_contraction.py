# SPDX-License-Identifier: Apache-2.0
"""Contractions are recognized as they are stored, and nothing else is taken for one."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.script import tirx as T

from tvm_stitch.compute.anchored import anchored
from tvm_stitch.failures import Refusal
from tvm_stitch.graph.reader import read


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
    assert (p.batch, p.rows, p.columns, p.depth, p.transposed) == (2, 12, 5, 8, True)
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
    assert (p.batch, p.rows, p.columns, p.depth, p.transposed) == (1, 12, 5, 8, True)


@T.prim_func(s_tir=True)
def of_columns(
    x: T.Buffer((8, 4), "float32"), w: T.Buffer((8, 5), "float32"), y: T.Buffer((4, 5), "float32")
):
    for i, n, k in T.grid(4, 5, 8):
        with T.sblock("product"):
            vi, vn, vk = T.axis.remap("SSR", [i, n, k])
            with T.init():
                y[vi, vn] = T.float32(0)
            y[vi, vn] = y[vi, vn] + x[vk, vi] * w[vk, vn]


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
        (of_columns, "x is not read row by row"),
        (of_what_it_computes, "e is computed in the same kernel"),
    ],
)
def test_others_are_refused(func: Any, reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        anchored(read(func, "f"))
