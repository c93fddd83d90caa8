# SPDX-License-Identifier: Apache-2.0
"""Convolutions are recognized as they are stored, with the borders and permutations of their data."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.script import tirx as T

from tests.graph.helpers import build
from tvm_stitch.compute.anchored import Anchored, anchored, has_template
from tvm_stitch.compute.contraction import Contraction
from tvm_stitch.compute.convolution import Convolution, Window
from tvm_stitch.graph.reader import read
from tvm_stitch.support.failures import Refusal


def legalized(data: tuple[int, ...], weight: tuple[int, ...], **attrs: Any) -> Any:
    """Return the PrimFunc of a convolution, channels innermost."""
    made = build(
        lambda emit, x, w: [relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="OHWI", **attrs)],
        (data, "float32"),
        (weight, "float32"),
    )
    mod = relax.transform.LegalizeOps()(made)
    return next(f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc))


def found(func: Any) -> Anchored:
    return anchored(read(func, "f"))


def test_windows_strides_and_borders() -> None:
    func = legalized((2, 9, 8, 6), (10, 3, 2, 6), strides=[2, 1], padding=[1, 0, 2, 3], dilation=[1, 2])
    conv = found(func).product
    assert isinstance(conv, Convolution)
    assert conv.windows == (Window(5, 3, 2, 1), Window(9, 2, 1, 2))
    assert (conv.batch, conv.groups, conv.inputs, conv.outputs) == (2, 1, 6, 10)
    assert conv.data.before == (0, 1, 0, 0) and conv.data.inner == (2, 9, 8, 6)
    assert conv.data.shape == (2, 12, 11, 6) and not conv.data.is_plain
    assert conv.weight_order == (0, 1, 2, 3) and conv.reduction == 36 and conv.rows == 90


def test_groups_of_channels() -> None:
    conv = found(legalized((1, 5, 5, 6), (12, 3, 3, 2), groups=3)).product
    assert isinstance(conv, Convolution)
    assert (conv.groups, conv.inputs, conv.outputs, conv.is_depthwise) == (3, 2, 4, False)
    conv = found(legalized((1, 5, 5, 6), (6, 3, 3, 1), groups=6)).product
    assert isinstance(conv, Convolution) and conv.is_depthwise


def test_one_that_is_a_matrix_product() -> None:
    product = found(legalized((2, 5, 5, 6), (12, 1, 1, 6))).product
    assert isinstance(product, Contraction)
    assert (product.rows, product.columns, product.reduction, product.transposed) == (50, 12, 6, True)


def test_strides_make_it_none() -> None:
    assert isinstance(found(legalized((2, 5, 5, 6), (12, 1, 1, 6), strides=2)).product, Convolution)


@T.prim_func(s_tir=True)
def of_a_corner(
    x: T.Buffer((1, 6, 8, 3), "float32"),
    w: T.Buffer((4, 1, 1, 3), "float32"),
    y: T.Buffer((1, 4, 5, 4), "float32"),
):
    for n, i, j, f, r, s, c in T.grid(1, 4, 5, 4, 1, 1, 3):
        with T.sblock("conv"):
            vn, vi, vj, vf, vr, vs, vc = T.axis.remap("SSSSRRR", [n, i, j, f, r, s, c])
            with T.init():
                y[vn, vi, vj, vf] = T.float32(0)
            y[vn, vi, vj, vf] = y[vn, vi, vj, vf] + x[vn, vi + vr, vj + vs, vc] * w[vf, vr, vs, vc]


def test_a_part_of_the_image_makes_it_none_too() -> None:
    assert isinstance(found(of_a_corner).product, Convolution)


@T.prim_func(s_tir=True)
def of_a_transposed_slice(
    x: T.Buffer((1, 3, 7, 9), "float32"),
    w: T.Buffer((4, 3, 3, 3), "float32"),
    y: T.Buffer((1, 4, 6, 4), "float32"),
):
    t = T.sblock_alloc_buffer((1, 3, 6, 8))
    u = T.sblock_alloc_buffer((1, 6, 8, 3))
    for n, c, i, j in T.grid(1, 3, 6, 8):
        with T.sblock("slice"):
            vn, vc, vi, vj = T.axis.remap("SSSS", [n, c, i, j])
            t[vn, vc, vi, vj] = x[vn, vc, vi + 1, vj + 1]
    for n, i, j, c in T.grid(1, 6, 8, 3):
        with T.sblock("transposed"):
            vn, vi, vj, vc = T.axis.remap("SSSS", [n, i, j, c])
            u[vn, vi, vj, vc] = t[vn, vc, vi, vj]
    for n, i, j, f, r, s, c in T.grid(1, 4, 6, 4, 3, 3, 3):
        with T.sblock("conv"):
            vn, vi, vj, vf, vr, vs, vc = T.axis.remap("SSSSRRR", [n, i, j, f, r, s, c])
            with T.init():
                y[vn, vi, vj, vf] = T.float32(0)
            y[vn, vi, vj, vf] = y[vn, vi, vj, vf] + u[vn, vi + vr, vj + vs, vc] * w[vf, vr, vs, vc]


@T.prim_func(s_tir=True)
def of_a_transposed_image(
    x: T.Buffer((1, 3, 6, 8), "float32"),
    w: T.Buffer((4, 3, 3, 3), "float32"),
    y: T.Buffer((1, 4, 6, 4), "float32"),
):
    t = T.sblock_alloc_buffer((1, 6, 8, 3))
    for n, i, j, c in T.grid(1, 6, 8, 3):
        with T.sblock("transposed"):
            vn, vi, vj, vc = T.axis.remap("SSSS", [n, i, j, c])
            t[vn, vi, vj, vc] = x[vn, vc, vi, vj]
    for n, i, j, f, r, s, c in T.grid(1, 4, 6, 4, 3, 3, 3):
        with T.sblock("conv"):
            vn, vi, vj, vf, vr, vs, vc = T.axis.remap("SSSSRRR", [n, i, j, f, r, s, c])
            with T.init():
                y[vn, vi, vj, vf] = T.float32(0)
            y[vn, vi, vj, vf] = y[vn, vi, vj, vf] + t[vn, vi + vr, vj + vs, vc] * w[vf, vr, vs, vc]


def test_data_in_another_order() -> None:
    conv = found(of_a_transposed_image).product
    assert isinstance(conv, Convolution)
    assert conv.data.source.name == "x" and conv.data.order == (0, 3, 1, 2)


def test_data_of_a_slice_in_another_order() -> None:
    """A slice is a border of less than nothing."""
    conv = found(of_a_transposed_slice).product
    assert isinstance(conv, Convolution)
    assert conv.data.source.name == "x" and conv.data.order == (0, 3, 1, 2)
    assert conv.data.before == (0, -1, -1, 0) and conv.data.inner == (1, 7, 9, 3)


@T.prim_func(s_tir=True)
def of_a_border_of_a_slice(
    x: T.Buffer((1, 7, 9, 3), "float32"),
    w: T.Buffer((4, 3, 3, 3), "float32"),
    y: T.Buffer((1, 6, 8, 4), "float32"),
):
    t = T.sblock_alloc_buffer((1, 6, 8, 3))
    u = T.sblock_alloc_buffer((1, 8, 10, 3))
    for n, i, j, c in T.grid(1, 6, 8, 3):
        with T.sblock("slice"):
            vn, vi, vj, vc = T.axis.remap("SSSS", [n, i, j, c])
            t[vn, vi, vj, vc] = x[vn, vi + 1, vj + 1, vc]
    for n, i, j, c in T.grid(1, 8, 10, 3):
        with T.sblock("border"):
            vn, vi, vj, vc = T.axis.remap("SSSS", [n, i, j, c])
            u[vn, vi, vj, vc] = T.if_then_else(
                1 <= vi and vi < 7 and 1 <= vj and vj < 9, t[vn, vi - 1, vj - 1, vc], T.float32(0)
            )
    for n, i, j, f, r, s, c in T.grid(1, 6, 8, 4, 3, 3, 3):
        with T.sblock("conv"):
            vn, vi, vj, vf, vr, vs, vc = T.axis.remap("SSSSRRR", [n, i, j, f, r, s, c])
            with T.init():
                y[vn, vi, vj, vf] = T.float32(0)
            y[vn, vi, vj, vf] = y[vn, vi, vj, vf] + u[vn, vi + vr, vj + vs, vc] * w[vf, vr, vs, vc]


@T.prim_func(s_tir=True)
def of_a_narrower_border(
    x: T.Buffer((1, 6, 8, 3), "float32"),
    w: T.Buffer((4, 3, 3, 3), "float32"),
    y: T.Buffer((1, 4, 8, 4), "float32"),
):
    t = T.sblock_alloc_buffer((1, 6, 10, 3))
    for n, i, j, c in T.grid(1, 6, 10, 3):
        with T.sblock("border"):
            vn, vi, vj, vc = T.axis.remap("SSSS", [n, i, j, c])
            t[vn, vi, vj, vc] = T.if_then_else(2 <= vj and vj < 9, x[vn, vi, vj - 1, vc], T.float32(0))
    for n, i, j, f, r, s, c in T.grid(1, 4, 8, 4, 3, 3, 3):
        with T.sblock("conv"):
            vn, vi, vj, vf, vr, vs, vc = T.axis.remap("SSSSRRR", [n, i, j, f, r, s, c])
            with T.init():
                y[vn, vi, vj, vf] = T.float32(0)
            y[vn, vi, vj, vf] = y[vn, vi, vj, vf] + t[vn, vi + vr, vj + vs, vc] * w[vf, vr, vs, vc]


@T.prim_func(s_tir=True)
def of_an_activation(
    x: T.Buffer((1, 6, 8, 3), "float32"),
    w: T.Buffer((4, 3, 3, 3), "float32"),
    y: T.Buffer((1, 4, 6, 4), "float32"),
):
    t = T.sblock_alloc_buffer((1, 6, 8, 3))
    for n, i, j, c in T.grid(1, 6, 8, 3):
        with T.sblock("relu"):
            vn, vi, vj, vc = T.axis.remap("SSSS", [n, i, j, c])
            t[vn, vi, vj, vc] = T.max(x[vn, vi, vj, vc], T.float32(0))
    for n, i, j, f, r, s, c in T.grid(1, 4, 6, 4, 3, 3, 3):
        with T.sblock("conv"):
            vn, vi, vj, vf, vr, vs, vc = T.axis.remap("SSSSRRR", [n, i, j, f, r, s, c])
            with T.init():
                y[vn, vi, vj, vf] = T.float32(0)
            y[vn, vi, vj, vf] = y[vn, vi, vj, vf] + t[vn, vi + vr, vj + vs, vc] * w[vf, vr, vs, vc]


@T.prim_func(s_tir=True)
def of_channels_outermost(
    x: T.Buffer((1, 3, 6, 8), "float32"),
    w: T.Buffer((4, 3, 3, 3), "float32"),
    y: T.Buffer((1, 4, 4, 6), "float32"),
):
    for n, f, i, j, c, r, s in T.grid(1, 4, 4, 6, 3, 3, 3):
        with T.sblock("conv"):
            vn, vf, vi, vj, vc, vr, vs = T.axis.remap("SSSSRRR", [n, f, i, j, c, r, s])
            with T.init():
                y[vn, vf, vi, vj] = T.float32(0)
            y[vn, vf, vi, vj] = y[vn, vf, vi, vj] + x[vn, vc, vi + vr, vj + vs] * w[vf, vc, vr, vs]


@T.prim_func(s_tir=True)
def of_channels_in_another_order(
    x: T.Buffer((1, 6, 8, 4), "float32"),
    w: T.Buffer((4, 3, 3, 2), "float32"),
    y: T.Buffer((1, 4, 6, 4), "float32"),
):
    for n, i, j, f, r, s, c in T.grid(1, 4, 6, 4, 3, 3, 2):
        with T.sblock("conv"):
            vn, vi, vj, vf, vr, vs, vc = T.axis.remap("SSSSRRR", [n, i, j, f, r, s, c])
            with T.init():
                y[vn, vi, vj, vf] = T.float32(0)
            y[vn, vi, vj, vf] = (
                y[vn, vi, vj, vf] + x[vn, vi + vr, vj + vs, vf % 2 * 2 + vc] * w[vf, vr, vs, vc]
            )


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (of_a_border_of_a_slice, "t is computed in the same kernel"),
        (of_a_narrower_border, "t is computed in the same kernel"),
        (of_an_activation, "t is computed in the same kernel"),
        (of_channels_outermost, "its channels are not innermost"),
        (of_channels_in_another_order, "the channels of x are not read in groups"),
    ],
)
def test_others_are_refused(func: Any, reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        found(func)
    assert not has_template(read(func, "f"))
