# SPDX-License-Identifier: Apache-2.0
"""Tensors that are quantized to int8 and only dequantized are quantized to uint8."""

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
from tvm_stitch.relax.quantize.unsigned import UnsignedQuantization


@I.ir_module
class Before:
    @RS.function
    def main(x: RS.Tensor((4, 6), "float32")) -> RS.Tensor((24,), "float32"):
        with RS.dataflow():
            q = RS.quantize(x, RS.const(0.1, "float32"), RS.const(-5, "int8"), out_dtype="int8")
            flat = RS.reshape(q, (24,))
            result = RS.dequantize(flat, RS.const(0.1, "float32"), RS.const(-5, "int8"), out_dtype="float32")
            RS.output(result)
        return result


@I.ir_module
class After:
    @RS.function
    def main(x: RS.Tensor((4, 6), "float32")) -> RS.Tensor((24,), "float32"):
        with RS.dataflow():
            q = RS.quantize(x, RS.const(0.1, "float32"), RS.const(123, "uint8"), out_dtype="uint8")
            flat = RS.reshape(q, (24,))
            result = RS.dequantize(
                flat, RS.const(0.1, "float32"), RS.const(123, "uint8"), out_dtype="float32"
            )
            RS.output(result)
        return result


def test_zero_points_are_128_more() -> None:
    tvm.ir.assert_structural_equal(UnsignedQuantization()(Before), After)


@pytest.mark.parametrize("reader", ["result", "cast", "zero point"])
def test_what_is_read_as_signed_stays(reader: str) -> None:
    def body(emit: Any, x: Any, z: Any) -> list[Any]:
        scale, zero = relax.const(np.float32(0.1)), relax.const(3, "int8")
        q = emit(R.quantize(x, scale, zero, out_dtype="int8"))
        flat = emit(R.reshape(q, (24,)))
        real = R.dequantize(flat, scale, z if reader == "zero point" else zero, out_dtype="float32")
        return [real, {"result": flat, "cast": R.astype(q, "int32"), "zero point": x}[reader]]

    mod = build(body, ((4, 6), "float32"), ((), "int8"))
    tvm.ir.assert_structural_equal(UnsignedQuantization()(mod), mod)
