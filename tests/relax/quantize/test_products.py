# SPDX-License-Identifier: Apache-2.0
"""Products of dequantized integers become products of integers, with the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as RS

from tests.graph.helpers import build, symbol
from tests.relax.quantize.product_runs import (
    AVX2,
    HERE,
    SCALE,
    VNNI,
    after,
    constant,
    integers,
    quantized_matmul,
    run,
)
from tvm_stitch.relax import pipeline

NONE = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})


def operators(mod: tvm.IRModule) -> list[str]:
    values = relax.analysis.get_var2val(mod["main"]).values()
    return [
        v.op.name.removeprefix("relax.")
        for v in values
        if isinstance(v, relax.Call) and hasattr(v.op, "name")
    ]


@I.ir_module
class Before:
    @RS.function
    def main(x: RS.Tensor((4, 3), "int8")) -> RS.Tensor((4, 2), "float32"):
        with RS.dataflow():
            real = RS.dequantize(x, RS.const(0.5, "float32"), RS.const(3, "int8"), out_dtype="float32")
            weight = RS.dequantize(
                RS.const([[1, -2], [3, 4], [5, 6]], "int8"),
                RS.const([0.25, 2.0], "float32"),
                RS.const([0, 0], "int8"),
                out_dtype="float32",
                axis=1,
            )
            result = RS.matmul(real, weight)
            RS.output(result)
        return result


@I.ir_module
class After:
    @RS.function
    def main(x: RS.Tensor((4, 3), "int8")) -> RS.Tensor((4, 2), "float32"):
        with RS.dataflow():
            sums = RS.matmul(x, RS.const([[1, -2], [3, 4], [5, 6]], "int8"), out_dtype="int32")
            centred = RS.subtract(sums, RS.const([27, 24], "int32"))
            real = RS.astype(centred, "float32")
            result = RS.multiply(real, RS.const([0.125, 1.0], "float32"))
            RS.output(result)
        return result


@I.ir_module
class Unsigned:
    @RS.function
    def main(x: RS.Tensor((4, 3), "int8")) -> RS.Tensor((4, 2), "float32"):
        with RS.dataflow():
            wide = RS.astype(x, "int16")
            moved = RS.add(wide, RS.const(128, "int16"))
            shifted = RS.astype(moved, "uint8")
            sums = RS.matmul(shifted, RS.const([[1, -2], [3, 4], [5, 6]], "int8"), out_dtype="int32")
            centred = RS.subtract(sums, RS.const([131 * 9, 131 * 8], "int32"))
            real = RS.astype(centred, "float32")
            result = RS.multiply(real, RS.const([0.125, 1.0], "float32"))
            RS.output(result)
        return result


@pytest.mark.parametrize(("target", "expected"), [(AVX2, After), (VNNI, Unsigned)], ids=["pairs", "vnni"])
def test_a_product_and_its_corrections(target: Any, expected: Any) -> None:
    made, computed = after(Before, target)
    tvm.ir.assert_structural_equal(made, expected)
    assert not computed


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("weights", ["signed", "unsigned", "asymmetric"])
@pytest.mark.parametrize("zero", [0, 7])
@pytest.mark.parametrize("per_column", [False, True])
def test_numbers(dtype: str, weights: str, zero: int, per_column: bool) -> None:
    k, n = 37, 21
    w = integers("int8" if weights == "signed" else "uint8", k, n)
    middle = {"signed": 0, "unsigned": 128, "asymmetric": 131}[weights]
    scale = np.linspace(0.01, 0.1, n, dtype="float32") if per_column else np.float32(0.02)
    weight_zero = np.full(n, middle) if per_column else middle
    mod = quantized_matmul(k, w, zero, scale, weight_zero, dtype)
    x = integers(dtype, 9, k)
    found, recorder = run(mod, x)
    exact = (x.astype("int64") - zero) @ (w.astype("int64") - middle)
    np.testing.assert_allclose(found, exact * np.float64(SCALE) * scale.astype("float64"), rtol=3e-7)
    assert any("an instruction" in how for how in recorder.computed.values())


def test_symbolic_rows() -> None:
    w = integers("int8", 12, 5)
    mod = quantized_matmul(12, w, -3, np.float32(0.5), 0, rows=symbol("n"))
    executable = tvm.compile(mod, HERE, relax_pipeline=pipeline(HERE))
    vm = relax.VirtualMachine(executable, tvm.cpu())
    for rows in (0, 1, 13):
        x = integers("int8", rows, 12)
        exact = (x.astype("int64") + 3) @ w.astype("int64")
        found = vm["main"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(found, exact * np.float64(SCALE) * 0.5, rtol=3e-7)


def test_scales_that_are_computed() -> None:
    w = integers("int8", 16, 6)

    def body(emit: Any, x: Any, scale: Any) -> list[Any]:
        left = emit(R.dequantize(x, scale, constant(5, "uint8"), out_dtype="float32"))
        right = emit(
            R.dequantize(constant(w), constant(np.float32(0.5)), constant(0, "int8"), out_dtype="float32")
        )
        return [R.matmul(left, right)]

    mod = build(body, ((7, 16), "uint8"), ((), "float32"))
    x = integers("uint8", 7, 16)
    found, recorder = run(mod, x, np.asarray(0.3, "float32"))
    exact = (x.astype("int64") - 5) @ w.astype("int64")
    np.testing.assert_allclose(found, exact * np.float64(np.float32(0.3)) * 0.5, rtol=3e-7)
    assert any("an instruction" in how for how in recorder.computed.values())


def test_a_weight_stored_by_columns() -> None:
    w = integers("int8", 6, 16)

    def body(emit: Any, x: Any) -> list[Any]:
        left = emit(R.dequantize(x, constant(SCALE), constant(1, "int8"), out_dtype="float32"))
        scales = constant(np.linspace(0.1, 0.2, 6, dtype="float32"))
        right = R.dequantize(constant(w), scales, constant(np.zeros(6, "int8")), axis=0, out_dtype="float32")
        return [R.matmul(left, emit(R.permute_dims(emit(right))))]

    x = integers("int8", 3, 16)
    found, _ = run(build(body, (x.shape, "int8")), x)
    exact = (x.astype("int64") - 1) @ w.T.astype("int64")
    np.testing.assert_allclose(found, exact * np.float64(SCALE) * np.linspace(0.1, 0.2, 6), rtol=4e-7)


# -- refusals ------------------------------------------------------------------------------------------------------
def matmul_of(k: int, weight: np.ndarray, **more: Any) -> tvm.IRModule:
    return quantized_matmul(k, weight, 0, np.float32(0.5), more.pop("weight_zero", 0), **more)


@pytest.mark.parametrize(
    ("mod", "target", "reason"),
    [
        (matmul_of(4, integers("int8", 4, 3)), NONE, "the CPU multiplies no groups of integers"),
        (
            matmul_of(70_000, np.full((70_000, 1), 127, "int8")),
            AVX2,
            "70000 products may not fit into an int32",
        ),
        (
            quantized_matmul(3, integers("int8", 3, 2), 0, [0.1, 0.2, 0.3], [0, 0, 0], axis=0),
            AVX2,
            "scales along the reduction dimension",
        ),
        (matmul_of(4, integers("int8", 4, 3), dtype="int16"), AVX2, "templates take int8 and uint8"),
    ],
    ids=["cpu", "overflow", "axis", "type"],
)
def test_what_stays_as_it_is(mod: tvm.IRModule, target: Any, reason: str) -> None:
    made, computed = after(mod, target)
    tvm.ir.assert_structural_equal(made, mod)
    (why,) = computed.values()
    assert why.startswith("multiplied as float32: ") and reason in why


def test_the_bound_of_sums() -> None:
    for depth, taken in ((65_793, True), (65_794, False)):
        made, _ = after(matmul_of(depth, np.full((depth, 1), -128, "int8")))
        assert ("dequantize" not in operators(made)) is taken


def test_a_right_side_that_is_no_constant() -> None:
    def body(emit: Any, x: Any, y: Any) -> list[Any]:
        parameters = constant(SCALE), constant(0, "int8")
        left, right = (emit(R.dequantize(v, *parameters, out_dtype="float32")) for v in (x, y))
        return [R.matmul(left, right)]

    mod = build(body, ((4, 5), "int8"), ((5, 6), "int8"))
    made, computed = after(mod)
    tvm.ir.assert_structural_equal(made, mod)
    assert list(computed.values()) == ["multiplied as float32: its right side is not a constant"]
    x, y = integers("int8", 4, 5), integers("int8", 5, 6)
    exact = x.astype("int64") @ y.astype("int64") * np.float64(SCALE) ** 2
    np.testing.assert_allclose(run(mod, x, y)[0], exact, rtol=1e-5, atol=1e-4)


def test_products_that_TVM_is_asked_for() -> None:
    _, computed = after(matmul_of(4, integers("int8", 4, 3)), compute="tvm")
    assert list(computed.values()) == ["multiplied as float32: TVM's schedules compute it"]


def test_products_of_floats_are_no_refusal() -> None:
    mod = build(lambda emit, x: [R.matmul(x, constant(np.ones((4, 3), "float32")))], ((5, 4), "float32"))
    made, computed = after(mod)
    tvm.ir.assert_structural_equal(made, mod)
    assert not computed


# -- convolutions --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("channels", "results", "groups", "stride", "padding", "zero"),
    [
        (3, 8, 1, 2, 1, 5),
        (8, 12, 2, 1, [0, 1, 2, 1], -3),
        (6, 6, 6, 1, 1, 9),
        (16, 10, 1, 1, 0, 4),
        (5, 4, 1, 1, 1, 0),
    ],
)
def test_convolutions(
    dtype: str, channels: int, results: int, groups: int, stride: int, padding: Any, zero: int
) -> None:
    zero = zero % 256 if dtype == "uint8" else zero
    w = integers("int8", results, channels // groups, 3, 3)
    scales = np.linspace(0.01, 0.03, results, dtype="float32")

    def body(emit: Any, x: Any) -> list[Any]:
        left = emit(R.dequantize(x, constant(SCALE), constant(zero, dtype), out_dtype="float32"))
        zeros = constant(np.zeros(results, "int8"))
        right = emit(R.dequantize(constant(w), constant(scales), zeros, axis=0, out_dtype="float32"))
        return [R.nn.conv2d(left, right, strides=stride, padding=padding, groups=groups)]

    mod = build(body, ((2, channels, 9, 8), dtype))
    x = integers(dtype, 2, channels, 9, 8)
    found, recorder = run(mod, x)
    top, left, bottom, right = [padding] * 4 if isinstance(padding, int) else padding
    wide = torch.nn.functional.pad(torch.tensor(x.astype("float64") - zero), (left, right, top, bottom))
    exact = torch.nn.functional.conv2d(
        wide, torch.tensor(w.astype("float64")), stride=stride, groups=groups
    ).numpy()
    expected = exact * np.float64(SCALE) * scales.astype("float64")[:, None, None]
    np.testing.assert_allclose(found, expected, rtol=3e-7)
    assert any(how.startswith("our template") for how in recorder.computed.values())


def test_a_convolution_whose_weight_has_a_zero_point() -> None:
    def mod(zero: int) -> tvm.IRModule:
        w = np.arange(256, dtype="uint8").reshape(1, 4, 8, 8)

        def body(emit: Any, x: Any) -> list[Any]:
            left = emit(R.dequantize(x, constant(SCALE), constant(1, "uint8"), out_dtype="float32"))
            right = R.dequantize(constant(w), constant(SCALE), constant(zero, "uint8"), out_dtype="float32")
            return [R.nn.conv2d(left, emit(right))]

        return build(body, ((1, 4, 9, 9), "uint8"))

    made, computed = after(mod(128))
    assert "dequantize" not in operators(made) and not computed
    made, computed = after(mod(100))
    assert "dequantize" in operators(made)
    assert "not signed bytes" in next(iter(computed.values()))
