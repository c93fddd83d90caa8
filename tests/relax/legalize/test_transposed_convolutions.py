# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions: what they are rewritten to, and by templates right at every shape, in as few kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import tirx as T

from stitch_testing.more_than_stock import more_than_stock
from tests.graph.helpers import build, symbol
from tvm_stitch import StitchConfig
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.legalize.input_dilation import TRANSPOSED_CONVOLUTIONS
from tvm_stitch.relax.legalize.transposed_convolutions import TransposedConvolutions

F32 = "float32"
TARGETS = {"sse": "x86-64", "avx2": "haswell"}
OPERATORS = {3: R.nn.conv1d_transpose, 4: R.nn.conv2d_transpose, 5: R.nn.conv3d_transpose}
TORCH = {3: torch.conv_transpose1d, 4: torch.conv_transpose2d, 5: torch.conv_transpose3d}


def target(name: str = "avx2") -> tvm.target.Target:
    return tvm.target.Target({"kind": "llvm", "mcpu": TARGETS[name]})


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32)


def run(
    mod: tvm.IRModule, where: tvm.target.Target, *arrays: np.ndarray, config: StitchConfig | None = None
) -> tuple[Any, dict[str, str]]:
    recorder = Recorder()
    executable = tvm.compile(mod, where, relax_pipeline=pipeline(where, config, recorder))
    made = relax.VirtualMachine(executable, tvm.cpu())["main"](*[tvm.runtime.tensor(a) for a in arrays])
    return made.numpy(), recorder.computed


def expected(x: np.ndarray, w: np.ndarray, **attrs: Any) -> tuple[np.ndarray, np.ndarray]:
    """Compute it in float64, and that of the absolute values, which bounds errors."""
    names = ("strides", 1), ("padding", 0), ("output_padding", 0), ("groups", 1), ("dilation", 1)
    more = [attrs.get(name, default) for name, default in names]
    wide = [torch.tensor(a.astype("float64")) for a in (x, w)]
    made = [TORCH[x.ndim](a, b, None, *more).numpy() for a, b in (wide, [abs(v) for v in wide])]
    return made[0], made[1]


def check(result: np.ndarray, wanted: tuple[np.ndarray, np.ndarray]) -> None:
    assert result.shape == wanted[0].shape
    assert (np.abs(result - wanted[0]) <= 1e-6 * wanted[1] + 1e-30).all()


CASES = [
    ((1, 16, 9, 9), (16, 32, 3, 3), {"strides": 2, "padding": 1}),
    ((2, 5, 7, 6), (5, 11, 3, 3), {"strides": 2, "padding": 1, "output_padding": 1}),
    ((2, 40, 5, 4), (40, 33, 2, 2), {"strides": 2}),
    ((1, 8, 5, 6), (8, 12, 4, 4), {"strides": 2, "padding": 1}),
    ((1, 8, 5, 6), (8, 12, 3, 3), {"padding": 1}),
    (
        (1, 8, 5, 6),
        (8, 3, 3, 4),
        {"strides": [3, 2], "padding": [1, 0], "groups": 2, "output_padding": [1, 0]},
    ),
    ((1, 20, 5, 6), (20, 1, 4, 4), {"strides": 2, "padding": 1, "groups": 20}),
    ((1, 20, 5, 6), (20, 2, 4, 4), {"strides": 2, "padding": 1, "groups": 20}),
    # Phases that see no element of the window.
    ((1, 4, 5, 6), (4, 7, 1, 1), {"strides": 3}),
    ((1, 4, 5, 6), (4, 7, 2, 1), {"strides": 3, "output_padding": [2, 1]}),
    ((1, 4, 5, 6), (4, 7, 3, 3), {"strides": 4, "dilation": 2}),
    ((1, 12, 5, 6), (12, 1, 1, 2), {"strides": 3, "groups": 12}),
    ((1, 4, 5, 6), (4, 7, 3, 2), {"strides": 2, "dilation": 2, "padding": 1, "output_padding": 1}),
    ((1, 4, 5, 6), (4, 7, 3, 3), {"strides": [2, 3], "dilation": [3, 2], "padding": [2, 1]}),
    # Images of one place.
    ((3, 4, 1, 1), (4, 7, 4, 3), {}),
    ((3, 4, 1), (4, 7, 5), {"strides": 3}),
    ((1, 4, 1, 1), (4, 7, 4, 4), {"strides": 2, "padding": 1}),
    # Tiles across lines, long sums, lines that tasks divide, and both.
    ((1, 64, 4, 4), (64, 36, 4, 4), {"strides": 2, "padding": 1}),
    ((2, 160, 6, 6), (160, 20, 4, 4), {"strides": 2, "padding": 1}),
    ((3, 130, 6, 17), (130, 9, 3, 3), {"strides": 2, "padding": 1}),
    ((1, 4, 4, 2), (4, 5, 2, 3), {"strides": [2, 1], "padding": [0, 1]}),
    ((1, 4, 4, 4), (4, 1, 1, 1), {"strides": [2, 1], "padding": 1, "output_padding": [1, 0]}),
    ((1, 6, 601), (6, 9, 3), {"strides": 2, "padding": 1}),
    ((1, 130, 601), (130, 9, 7), {"strides": 2, "padding": 1}),
    ((1, 20, 530), (20, 1, 3), {"strides": 2, "padding": 1, "groups": 20}),
    ((1, 6, 17), (6, 9, 16), {"strides": 8, "padding": 4}),
    # More padding than the window reaches.
    ((1, 3, 7, 7), (3, 8, 3, 3), {"strides": 2, "padding": 3}),
    ((1, 3, 7, 7), (3, 8, 1, 1), {"padding": 1}),
    ((1, 3, 3, 4, 5), (3, 8, 3, 3, 3), {"strides": 2, "padding": 1}),
    ((1, 3, 3, 4, 5), (3, 8, 2, 3, 4), {"strides": [1, 2, 3], "padding": [0, 1, 1]}),
    ((1, 5, 3, 4, 5), (5, 1, 3, 3, 3), {"strides": 2, "padding": 1, "groups": 5}),
]


@pytest.mark.parametrize("cpu", TARGETS)
@pytest.mark.parametrize(("data", "weight", "attrs"), CASES, ids=str)
def test_a_transposed_convolution(data: Any, weight: Any, attrs: dict[str, Any], cpu: str) -> None:
    w = draw(*weight)
    mod = build(lambda emit, x: [OPERATORS[len(data)](x, relax.const(w), **attrs)], (data, F32))
    x = draw(*data)
    result, computed = run(mod, target(cpu), x)
    check(result, expected(x, w, **attrs))
    assert len(computed) == 1 and next(iter(computed.values())).startswith("our template")


@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 3, 1, 1)])
def test_few_elements(shape: Any) -> None:
    w, x = draw(3, 8, 3, 3), draw(*shape)
    mod = build(lambda emit, x: [R.nn.conv2d_transpose(x, relax.const(w), strides=2)], (shape, F32))
    check(run(mod, target(), x)[0], expected(x, w, strides=2))


@pytest.mark.parametrize("images", [0, 1, 5])
def test_a_symbolic_number_of_images(images: int) -> None:
    w, x = draw(6, 12, 3, 3), draw(images, 6, 10, 9)
    attrs = {"strides": 2, "padding": 1}
    mod = build(
        lambda emit, x: [R.nn.conv2d_transpose(x, relax.const(w), **attrs)], ((symbol(), 6, 10, 9), F32)
    )
    result, computed = run(mod, target(), x)
    check(result, expected(x, w, **attrs))
    assert next(iter(computed.values())).startswith("our template")


@pytest.mark.parametrize("where", ["images", "weight"])
def test_what_is_left_to_tvm(where: str) -> None:
    w, x = draw(6, 4, 3, 3), draw(2, 6, 5, 7)
    if where == "weight":
        mod = build(
            lambda emit, x, w: [R.nn.conv2d_transpose(x, w, strides=2)], (x.shape, F32), (w.shape, F32)
        )
        result, computed = run(mod, target(), x, w)
    else:
        shape = (2, 6, symbol("h"), 7)
        mod = build(lambda emit, x: [R.nn.conv2d_transpose(x, relax.const(w), strides=2)], (shape, F32))
        result, computed = run(mod, target(), x)
    check(result, expected(x, w, strides=2))
    assert next(iter(computed.values())).startswith("TVM")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_summed_in_float32(dtype: str) -> None:
    w, x = draw(70, 9, 3, 3).astype(dtype), draw(1, 70, 5, 6).astype(dtype)
    attrs = {"strides": 2, "padding": 1}
    mod = build(lambda emit, x: [R.nn.conv2d_transpose(x, relax.const(w, dtype), **attrs)], (x.shape, dtype))
    result, computed = run(mod, target(), x)
    wanted, bound = expected(x.astype(F32), w.astype(F32), **attrs)
    assert next(iter(computed.values())).startswith("our template")
    rounding = 2.0**-10 if dtype == "float16" else 2.0**-7
    assert (
        np.abs(result.astype("float64") - wanted) <= rounding * np.abs(wanted) + 1e-5 * bound + 1e-6
    ).all()


def test_float64_is_left_to_tvm() -> None:
    w, x = draw(3, 4, 3, 3).astype("float64"), draw(1, 3, 4, 5).astype("float64")
    mod = build(
        lambda emit, x: [R.nn.conv2d_transpose(x, relax.const(w, "float64"), strides=2)], (x.shape, "float64")
    )
    result, _ = run(mod, target(), x)
    np.testing.assert_allclose(result, expected(x, w, strides=2)[0], rtol=1e-12, atol=1e-12)


LAYOUTS = [
    ("NHWC", "IOHW", "NHWC"),
    ("NCHW", "OIHW", "NCHW"),
    ("NHWC", "OHWI", "NCHW"),
    ("NCHW", "HWIO", "NHWC"),
]


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("layouts", LAYOUTS, ids=str)
def test_layouts_that_tvm_does_not_legalize(layouts: Any, strides: int) -> None:
    w, x = draw(6, 4, 3, 2), draw(2, 6, 5, 7)

    def moved(a: np.ndarray, into: str, of: str) -> np.ndarray:
        return np.ascontiguousarray(a.transpose([of.index(axis) for axis in into]))

    data, kernel, out = layouts
    names = {"data_layout": data, "kernel_layout": kernel, "out_layout": out}
    given, weight = moved(x, data, "NCHW"), moved(w, kernel, "IOHW")
    mod = build(
        lambda emit, x: [R.nn.conv2d_transpose(x, relax.const(weight), strides=strides, **names)],
        (given.shape, F32),
    )
    result, computed = run(mod, target(), given)
    check(moved(result, "NCHW", out), expected(x, w, strides=strides))
    assert next(iter(computed.values())).startswith("our template")


def test_what_follows_is_in_the_same_kernel() -> None:
    w, b, x = draw(6, 40, 4, 4), draw(1, 40, 1, 1), draw(2, 6, 5, 7)
    attrs = {"strides": 2, "padding": 1}

    def body(emit: Any, x: Any, residual: Any) -> list[Any]:
        y = emit(R.nn.conv2d_transpose(x, relax.const(w), **attrs))
        y = emit(R.add(emit(R.add(y, relax.const(b))), residual))
        return [R.nn.gelu(y)]

    mod = build(body, (x.shape, F32), ((2, 40, 10, 14), F32))
    residual = draw(2, 40, 10, 14)
    result, _ = run(mod, target(), x, residual)
    wanted = torch.nn.functional.gelu(torch.tensor(expected(x, w, **attrs)[0] + b + residual)).numpy()
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-4)
    assert count_kernels(mod, target(), pipeline(target())).total == 1


def test_channels_stay_innermost_through_a_decoder_and_it_has_no_more_kernels() -> None:
    w, v, k = draw(6, 8, 2, 2), draw(8, 4, 4, 4), draw(5, 4, 3, 3)

    def body(emit: Any, x: Any) -> list[Any]:
        y = emit(R.nn.relu(emit(R.nn.conv2d_transpose(x, relax.const(w), strides=2))))
        y = emit(R.nn.relu(emit(R.nn.conv2d_transpose(y, relax.const(v), strides=2, padding=1))))
        return [R.nn.conv2d(y, relax.const(k), padding=1)]

    mod = build(body, ((2, 6, 5, 7), F32))
    assert count_kernels(mod, target(), pipeline(target())).total == 3
    assert not more_than_stock(mod, target(), pipeline(target()))


def test_not_a_number_stays_where_it_is_seen() -> None:
    w, x = draw(4, 3, 3, 3), draw(1, 4, 5, 5)
    x[0, 1, 2, 2] = np.nan
    mod = build(lambda emit, x: [R.nn.conv2d_transpose(x, relax.const(w), strides=2)], (x.shape, F32))
    wanted, bound = expected(x, w, strides=2)
    result, _ = run(mod, target(), x)
    assert (np.isnan(result) == np.isnan(wanted)).all() and np.isnan(wanted).sum() == 27
    assert (np.abs(result - wanted)[~np.isnan(wanted)] <= 1e-6 * bound[~np.isnan(wanted)]).all()


def test_of_stride_one_it_is_a_convolution_of_the_weight_turned_around() -> None:
    w = np.arange(4 * 3 * 2 * 3, dtype=F32).reshape(4, 3, 2, 3)
    turned = w.reshape(2, 2, 3, 2, 3).swapaxes(1, 2)[..., ::-1, ::-1].reshape(6, 2, 2, 3)
    before = build(
        lambda emit, x: [
            R.nn.conv2d_transpose(x, relax.const(w), padding=[0, 1, 1, 2], dilation=[2, 1], groups=2)
        ],
        ((1, 4, 5, 6), F32),
    )
    after = build(
        lambda emit, x: [
            R.nn.conv2d(
                x,
                relax.const(np.ascontiguousarray(turned)),
                padding=[2, 1, 1, 0],
                dilation=[2, 1],
                groups=2,
            )
        ],
        ((1, 4, 5, 6), F32),
    )
    tvm.ir.assert_structural_equal(TransposedConvolutions()(before), after)


def test_of_one_place_it_is_a_product() -> None:
    before = build(
        lambda emit, x, w: [R.nn.conv2d_transpose(x, w, strides=2)], ((3, 4, 1, 1), F32), ((4, 5, 2, 3), F32)
    )

    def body(emit: Any, x: Any, w: Any) -> list[Any]:
        rows, matrix = emit(R.reshape(x, [3, 4])), emit(R.reshape(w, [4, 30]))
        return [R.reshape(emit(R.matmul(rows, matrix, out_dtype=F32)), [3, 5, 2, 3])]

    tvm.ir.assert_structural_equal(
        TransposedConvolutions()(before), build(body, ((3, 4, 1, 1), F32), ((4, 5, 2, 3), F32))
    )


def test_other_strides_and_weights_that_are_no_constants_stay() -> None:
    w = relax.const(draw(4, 3, 2, 3))
    of_stride_two = build(lambda emit, x: [R.nn.conv2d_transpose(x, w, strides=[1, 2])], ((1, 4, 5, 6), F32))
    of_a_parameter = build(
        lambda emit, x, w: [R.nn.conv2d_transpose(x, w)], ((1, 4, 5, 6), F32), ((4, 3, 2, 3), F32)
    )
    of_stride_one = build(lambda emit, x: [R.nn.conv2d_transpose(x, w)], ((1, 4, 5, 6), F32))
    of_more_padding = build(
        lambda emit, x: [R.nn.conv2d_transpose(x, w, padding=[0, 3])], ((1, 4, 5, 6), F32)
    )
    for mod in (of_stride_two, of_a_parameter, of_more_padding):
        tvm.ir.assert_structural_equal(TransposedConvolutions()(mod), mod)
    tvm.ir.assert_structural_equal(TransposedConvolutions(rewrites=False)(of_stride_one), of_stride_one)


@T.prim_func(private=True, s_tir=True)
def spread(
    x: T.Buffer((T.int64(1), T.int64(3), T.int64(2)), "float32"),
    w: T.Buffer((T.int64(4), T.int64(3), T.int64(2)), "float32"),
    y: T.Buffer((T.int64(1), T.int64(6), T.int64(4)), "float32"),
):
    T.func_attr({"tirx.noalias": True})
    zeros = T.sblock_alloc_buffer((T.int64(1), T.int64(5), T.int64(2)))
    border = T.sblock_alloc_buffer((T.int64(1), T.int64(8), T.int64(2)))
    for n, i, c in T.grid(T.int64(1), T.int64(5), T.int64(2)):
        with T.sblock("spread"):
            vn, vi, vc = T.axis.remap("SSS", [n, i, c])
            T.reads(x[vn, vi // T.int64(2), vc])
            T.writes(zeros[vn, vi, vc])
            zeros[vn, vi, vc] = T.if_then_else(
                vi % T.int64(2) == T.int64(0), x[vn, vi // T.int64(2), vc], T.float32(0)
            )
    for n, i, c in T.grid(T.int64(1), T.int64(8), T.int64(2)):
        with T.sblock("border"):
            vn, vi, vc = T.axis.remap("SSS", [n, i, c])
            T.reads(zeros[vn, vi - T.int64(1), vc])
            T.writes(border[vn, vi, vc])
            border[vn, vi, vc] = T.if_then_else(
                T.int64(1) <= vi and vi < T.int64(6), zeros[vn, vi - T.int64(1), vc], T.float32(0)
            )
    for n, i, f, k, c in T.grid(T.int64(1), T.int64(6), T.int64(4), T.int64(3), T.int64(2)):
        with T.sblock("conv_transpose"):
            vn, vi, vf, vk, vc = T.axis.remap("SSSRR", [n, i, f, k, c])
            T.reads(border[vn, vi + vk, vc], w[vf, vk, vc])
            T.writes(y[vn, vi, vf])
            with T.init():
                y[vn, vi, vf] = T.float32(0)
            y[vn, vi, vf] = y[vn, vi, vf] + border[vn, vi + vk, vc] * w[vf, vk, vc]


def test_channels_innermost_it_is_legalized_as_a_convolution_over_spread_data() -> None:
    w = np.arange(4 * 3 * 2, dtype=F32).reshape(4, 3, 2)
    attrs = {"strides": 2, "padding": 1, "output_padding": 1, "data_layout": "NWC", "kernel_layout": "OWI"}
    mod = build(lambda emit, x: [R.nn.conv1d_transpose(x, relax.const(w), **attrs)], ((1, 3, 2), F32))
    made = relax.transform.LegalizeOps(TRANSPOSED_CONVOLUTIONS)(mod)
    (func,) = [f for f in made.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    tvm.ir.assert_structural_equal(func, spread, map_free_vars=True)
    values = relax.analysis.get_var2val(made["main"]).values()
    (call,) = [v for v in values if isinstance(v, relax.Call)]
    assert (call.args[1].fields[1].value.numpy() == w[:, ::-1]).all()


@pytest.mark.parametrize("rank", [3, 4, 5])
@pytest.mark.parametrize("attrs", [{}, {"groups": 2, "padding": 1}, {"strides": 2, "output_padding": 1}])
def test_a_dilated_window_multiplies_nothing_by_zero(rank: int, attrs: dict[str, int]) -> None:
    data, weight = draw(2, 4, *(5, 6, 4)[: rank - 2]), draw(4, 3, *(3, 2, 2)[: rank - 2])
    data.flat[7] = np.inf
    attrs = {**attrs, "dilation": 2}
    body = lambda _, x, w: [OPERATORS[rank](x, w, **attrs)]  # noqa: E731
    made, _ = run(build(body, (data.shape, F32), (weight.shape, F32)), target(), data, weight)
    wanted, bound = expected(data, weight, **attrs)
    finite = np.isfinite(wanted)
    assert made.shape == wanted.shape and 0 < (~finite).sum() < finite.size / 2
    assert not np.isfinite(made[~finite]).any()
    assert (np.abs(made - wanted)[finite] <= 1e-6 * bound[finite]).all()
