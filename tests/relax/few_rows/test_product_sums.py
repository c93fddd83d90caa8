# SPDX-License-Identifier: Apache-2.0
"""Products of few rows are sums that scopes take: one kernel, at odd extents, with the numbers of float64."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import emulated, on_llvm
from tests.relax.few_rows.models import drawn, layer
from tvm_stitch import StitchConfig, explain
from tvm_stitch.device import device_model
from tvm_stitch.relax.few_rows.product_sums import ProductSums
from tvm_stitch.relax.stitch.dataflow import SUMS_ATTR

TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}
"""Most error, relative to the largest element of a result."""


@I.ir_module
class Before:
    @T.prim_func(private=True, s_tir=True)
    def product(x: T.Buffer((T.int64(1), T.int64(8)), "float32"), w: T.Buffer((T.int64(6), T.int64(8)), "float32"),
                y: T.Buffer((T.int64(1), T.int64(6)), "float32")):  # fmt: skip
        for m, n, k in T.grid(T.int64(1), T.int64(6), T.int64(8)):
            with T.sblock("product"):
                vm, vn, vk = T.axis.remap("SSR", [m, n, k])
                with T.init():
                    y[vm, vn] = T.float32(0)
                y[vm, vn] = y[vm, vn] + x[vm, vk] * w[vn, vk]

    @R.function
    def main(x: R.Tensor((1, 8), "float32"), w: R.Tensor((6, 8), "float32")) -> R.Tensor((1, 6), "float32"):
        with R.dataflow():
            y = R.call_tir(Before.product, (x, w), out_ty=R.Tensor((1, 6), "float32"))
            R.output(y)
        return y


@I.ir_module
class After:
    @T.prim_func(private=True, s_tir=True)
    def product(x: T.Buffer((T.int64(1), T.int64(8)), "float32"), w: T.Buffer((T.int64(6), T.int64(8)), "float32"),
                y: T.Buffer((T.int64(1), T.int64(6)), "float32")):  # fmt: skip
        T.func_attr({"tirx.noalias": True})
        first = T.sblock_alloc_buffer((T.int64(3),))
        second = T.sblock_alloc_buffer((T.int64(3),))
        for n, k in T.grid(T.int64(3), T.int64(8)):
            with T.sblock("product_0"):
                vn, vk = T.axis.remap("SR", [n, k])
                with T.init():
                    first[vn] = T.float32(0)
                first[vn] = first[vn] + x[T.int64(0), vk] * w[vn * T.int64(2), vk]
        for n, k in T.grid(T.int64(3), T.int64(8)):
            with T.sblock("product_1"):
                vn, vk = T.axis.remap("SR", [n, k])
                with T.init():
                    second[vn] = T.float32(0)
                second[vn] = second[vn] + x[T.int64(0), vk] * w[vn * T.int64(2) + T.int64(1), vk]
        for m, n in T.grid(T.int64(1), T.int64(6)):
            with T.sblock("product_of_sums"):
                vm, vn = T.axis.remap("SS", [m, n])
                y[vm, vn] = T.Select(
                    vn % T.int64(2) == T.int64(0), first[vn // T.int64(2)], second[vn // T.int64(2)]
                )

    @R.function
    def main(x: R.Tensor((1, 8), "float32"), w: R.Tensor((6, 8), "float32")) -> R.Tensor((1, 6), "float32"):
        with R.dataflow():
            y = R.call_tir(After.product, (x, w), out_ty=R.Tensor((1, 6), "float32"))
            R.output(y)
        return y


def sums(mod: tvm.IRModule, compute: str = "auto") -> tvm.IRModule:
    """Run the pass for an H200."""
    config = StitchConfig(compute=compute)
    return ProductSums(device_model(emulated_target(), config), config)(mod)


def test_a_product_of_one_row_is_sums_of_neighbouring_rows_of_weights() -> None:
    found = relax.transform.DeadCodeElimination()(sums(Before))
    (gvar,) = [g for g, f in found.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    assert SUMS_ATTR in found[gvar].attrs
    # TE's axes begin at a zero of 32 bits. Written and parsed again, they begin at one of their own type.
    made = tvm.script.from_source(found[gvar].without_attr(SUMS_ATTR).script())
    tvm.ir.assert_structural_equal(made, After["product"])
    (call,) = [b.value for b in found["main"].body.blocks[0].bindings]
    assert call.args[0].name_hint == gvar.name_hint


def test_a_library_that_is_asked_for_keeps_float_weights() -> None:
    tvm.ir.assert_structural_equal(sums(Before, "libraries"), Before)


CASES = [
    # rows, columns, inner, bits, dtype
    (1, 64, 256, 4, "float16"),
    (2, 60, 128, 4, "bfloat16"),
    (5, 36, 96, 8, "float32"),
    (3, 7, 32, 4, "float16"),  # a prime number of columns
    (16, 30, 64, 4, "float32"),
    (1, 13, 36, 0, "float32"),  # the inner extent is no multiple of a vector
    (1, 44, 17, 0, "bfloat16"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_of_few_rows_are_right_on_a_gpu(case: tuple[int, int, int, int, str]) -> None:
    inputs, wanted = drawn(*case)
    (found,) = emulated(layer(*case), *inputs)
    assert np.abs(found.astype("float64") - wanted).max() <= TOLERANCE[case[-1]] * np.abs(wanted).max()


@pytest.mark.parametrize("case", [(1, 64, 256, 4, "float32"), (3, 20, 40, 8, "float16")], ids=str)
def test_products_of_dequantized_weights_are_right_on_a_cpu(case: tuple[int, int, int, int, str]) -> None:
    inputs, wanted = drawn(*case)
    (found,) = on_llvm(layer(*case), *inputs)
    assert np.abs(found.astype("float64") - wanted).max() <= TOLERANCE[case[-1]] * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("rows", "bits", "kernels"),
    [(1, 4, 1), (2, 4, 1), (8, 4, 1), (16, 8, 1), (1, 0, 1)],
)
def test_the_kernels_of_a_norm_a_product_and_a_residual(rows: int, bits: int, kernels: int) -> None:
    report = explain(layer(rows, 4096, 1024, bits, "float16"), emulated_target())
    assert report.model is not None
    assert report.model.stitched.kernels == kernels


def test_a_dequantized_weight_is_never_in_memory() -> None:
    (kernel,) = explain(layer(2, 512, 1024, 4, "float16"), emulated_target()).kernels
    weights = 512 * 1024 // 2 + 512 * 1024 // 4 * 2
    assert int(kernel.bytes_read) + int(kernel.bytes_written) <= weights + 64 * 1024


def test_products_of_mlc_llm_are_stitched_in_the_place_of_fuse_ops() -> None:
    """Its passes write ``NT_matmul`` and ``dequantize`` as functions, and then fuse them."""
    from tvm import te

    from tests.relax.few_rows.models import dequantized
    from tvm_stitch.relax.pipeline import stitch_passes

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 64), "float16"))
    words = relax.Var("words", relax.TensorType((48, 8), "uint32"))
    scales = relax.Var("scales", relax.TensorType((48, 16), "float16"))

    def product(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, 64), "k")
        return te.compute((1, 48), lambda m, n: te.sum(x[m, k] * w[n, k], axis=k), "NT_matmul")

    with builder.function("decode", [x, words, scales]):
        with builder.dataflow():
            weight = builder.emit_te(
                dequantized, words, scales, 4, "float16", primfunc_name_hint="dequantize"
            )
            result = builder.emit_output(builder.emit_te(product, x, weight, primfunc_name_hint="NT_matmul"))
        builder.emit_func_output(result)
    target = emulated_target()
    with target:
        made = tvm.transform.Sequential(stitch_passes(target, StitchConfig()))(builder.get())
    (call,) = [b.value for block in made["decode"].body.blocks for b in block.bindings]
    assert call.args[0].name_hint == "stitch_dequantize_NT_matmul_sums"
