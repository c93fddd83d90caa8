# SPDX-License-Identifier: Apache-2.0
"""Quantizing and dequantizing as element-wise functions, with the numbers that ONNX asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.constants.views import ConstantViews
from tvm_stitch.relax.quantize.dequantized_constants import DequantizedConstants
from tvm_stitch.relax.quantize.elementwise import ELEMENTWISE_QUANTIZATION
from tvm_stitch.target import this_cpu

HERE = tvm.target.Target(this_cpu())


def run(mod: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    executable = tvm.compile(mod, HERE, relax_pipeline=pipeline(HERE))
    return relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays)).numpy()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("per_axis", [False, True])
def test_numbers(dtype: str, per_axis: bool) -> None:
    limits = np.iinfo(dtype)
    scale = np.linspace(0.25, 1.0, 5, dtype="float32") if per_axis else np.float32(0.5)
    zero = (
        np.linspace(limits.min, limits.max, 5).astype(dtype)
        if per_axis
        else np.asarray(limits.max // 3, dtype)
    )
    x = (np.arange(35).reshape(7, 5) * np.float32(0.25) - 4).astype("float32")  # half of them are ties
    x[0, :4] = [1e30, -1e30, np.inf, -np.inf]

    def body(emit: Any, v: Any) -> list[Any]:
        return [R.quantize(v, relax.const(scale), relax.const(zero), axis=1, out_dtype=dtype)]

    found = run(build(body, (x.shape, "float32")), x)
    expected = np.clip(np.round(x / scale) + zero.astype("float32"), limits.min, limits.max)
    np.testing.assert_array_equal(found, expected.astype(dtype))

    def back(emit: Any, v: Any) -> list[Any]:
        return [R.dequantize(v, relax.const(scale), relax.const(zero), axis=1, out_dtype="float32")]

    real = run(build(back, (x.shape, dtype)), found)
    np.testing.assert_array_equal(real, (found.astype("float32") - zero.astype("float32")) * scale)


def test_differences_of_int32_are_exact() -> None:
    x = np.array([2**31 - 1, -(2**31), 2**30 + 1, 5], "int32")

    def body(emit: Any, v: Any) -> list[Any]:
        return [R.dequantize(v, relax.const(np.float32(2)), relax.const(2**30, "int32"), out_dtype="float32")]

    found = run(build(body, (x.shape, "int32")), x)
    np.testing.assert_array_equal(found[2:], (x[2:].astype("int64") - 2**30).astype("float32") * 2)


def test_scales_that_are_computed() -> None:
    def body(emit: Any, v: Any, s: Any, z: Any) -> list[Any]:
        return [R.quantize(v, s, z, out_dtype="uint8")]

    mod = build(body, ((6, 7), "float32"), ((), "float32"), ((), "uint8"))
    x = np.random.default_rng(0).standard_normal((6, 7)).astype("float32")
    found = run(mod, x, np.asarray(0.1, "float32"), np.asarray(9, "uint8"))
    np.testing.assert_array_equal(found, np.clip(np.round(x / np.float32(0.1)) + 9, 0, 255).astype("uint8"))


def test_equal_layers_are_one_function() -> None:
    def body(emit: Any, v: Any) -> list[Any]:
        for scale, zero in ((0.5, 3), (0.25, -9)):
            parameters = relax.const(np.float32(scale)), relax.const(zero, "int8")
            q = emit(R.quantize(v, *parameters, out_dtype="int8"))
            v = emit(R.dequantize(q, *parameters, out_dtype="float32"))
        return [v]

    with HERE:
        made = relax.transform.LegalizeOps(ELEMENTWISE_QUANTIZATION)(build(body, ((6, 7), "float32")))
    assert len(list(made.functions_items())) == 3


def test_constants_are_dequantized_at_compile_time() -> None:
    w = np.arange(-6, 6, dtype="int8").reshape(3, 4)
    scale = np.array([0.5, 0.25, 2], "float32")

    def body(emit: Any, v: Any) -> list[Any]:
        zero = relax.const(np.array([0, 1, 2], "int8"))
        real = R.dequantize(relax.const(w), relax.const(scale), zero, axis=0, out_dtype="float32")
        return [R.add(v, emit(real))]

    expected = (w.astype("float32") - np.array([[0], [1], [2]], "float32")) * scale[:, None]
    passes = [DequantizedConstants(), ConstantViews(), relax.transform.DeadCodeElimination()]
    made = tvm.transform.Sequential(passes)(build(body, ((3, 4), "float32")))
    tvm.ir.assert_structural_equal(
        made,
        build(lambda emit, v: [R.add(v, relax.const(expected))], ((3, 4), "float32")),
    )
