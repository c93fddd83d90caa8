# SPDX-License-Identifier: Apache-2.0
"""Pairs of dequantizing and quantizing around what only moves elements are dropped, where that is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as RS

from tests.graph.helpers import build
from tvm_stitch.relax.quantize.parameters import dequantized
from tvm_stitch.relax.quantize.views import QuantizedViews


@I.ir_module
class Before:
    @RS.function
    def main(q: RS.Tensor((2, 6, 8, 8), "int8")) -> RS.Tensor((48, 4), "int8"):
        with RS.dataflow():
            real = RS.dequantize(q, RS.const(0.1, "float32"), RS.const(3, "int8"), out_dtype="float32")
            pooled = RS.nn.max_pool2d(real, pool_size=[2, 2], strides=[2, 2])
            inner = RS.quantize(pooled, RS.const(0.1, "float32"), RS.const(3, "int8"), out_dtype="int8")
            again = RS.dequantize(inner, RS.const(0.1, "float32"), RS.const(3, "int8"), out_dtype="float32")
            turned = RS.permute_dims(again, axes=[0, 2, 3, 1])
            flat = RS.reshape(turned, (48, 4))
            result = RS.quantize(flat, RS.const(0.1, "float32"), RS.const(3, "int8"), out_dtype="int8")
            RS.output(result)
        return result


@I.ir_module
class After:
    @RS.function
    def main(q: RS.Tensor((2, 6, 8, 8), "int8")) -> RS.Tensor((48, 4), "int8"):
        with RS.dataflow():
            inner = RS.nn.max_pool2d(q, pool_size=[2, 2], strides=[2, 2])
            turned = RS.permute_dims(inner, axes=[0, 2, 3, 1])
            result = RS.reshape(turned, (48, 4))
            RS.output(result)
        return result


def test_moves_of_integers() -> None:
    tvm.ir.assert_structural_equal(QuantizedViews()(Before), After)


def pair(
    scale: float = 0.1,
    again: float = 0.1,
    zero: int = 3,
    zero_again: int = 3,
    dtype: str = "int8",
    other: Any = None,
) -> tvm.IRModule:
    def body(emit: Any, q: Any) -> list[Any]:
        real = emit(
            R.dequantize(q, relax.const(np.float32(scale)), relax.const(zero, dtype), out_dtype="float32")
        )
        real = emit(other(real)) if other else real
        return [
            R.quantize(
                real, relax.const(np.float32(again)), relax.const(zero_again, "int8"), out_dtype="int8"
            )
        ]

    return build(body, ((4, 6), dtype))


@pytest.mark.parametrize(
    "changed",
    [
        {"again": 0.2},
        {"zero_again": 4},
        {"dtype": "uint8"},
        {"scale": 1e-38, "again": 1e-38},
        {"scale": -0.1, "again": -0.1},
        {"other": R.nn.relu},
    ],
    ids=["scale", "zero point", "type", "tiny scale", "negative scale", "operator"],
)
def test_what_is_no_pair(changed: dict[str, Any]) -> None:
    mod = pair(**changed)
    tvm.ir.assert_structural_equal(QuantizedViews()(mod), mod)


def test_a_pair_alone() -> None:
    made = QuantizedViews()(pair())
    assert not any(isinstance(v, relax.Call) for v in relax.analysis.get_var2val(made["main"]).values())


def test_a_result_that_is_dequantized_stays() -> None:
    def body(emit: Any, q: Any) -> list[Any]:
        parameters = relax.const(np.float32(0.1)), relax.const(3, "int8")
        real = emit(R.dequantize(q, *parameters, out_dtype="float32"))
        return [real, R.quantize(real, *parameters, out_dtype="int8")]

    made = QuantizedViews()(build(body, ((4, 6), "int8")))
    names = [
        v.op.name for v in relax.analysis.get_var2val(made["main"]).values() if isinstance(v, relax.Call)
    ]
    assert names == ["relax.dequantize"]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_it_is_exact(dtype: str) -> None:
    limits = np.iinfo(dtype)
    q = np.arange(limits.min, limits.max + 1).astype(dtype)
    for scale in np.random.default_rng(0).uniform(1e-5, 10, 40).astype("float32"):
        for zero in (0, limits.min, limits.max):
            real = dequantized(q, scale, np.asarray(zero))
            again = np.clip(np.round(real / scale) + np.float32(zero), limits.min, limits.max)
            np.testing.assert_array_equal(again.astype(dtype), q)
