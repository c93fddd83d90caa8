# SPDX-License-Identifier: Apache-2.0
"""A border is put around what is transposed, not the other way."""

from __future__ import annotations

import tvm
from tvm.script import ir as I
from tvm.script import relax as RS

from tvm_stitch.relax.carried_pads import CarriedPads


@I.ir_module
class Before:
    @RS.function
    def main(x: RS.Tensor((1, 3, 8, 9), "int8")) -> RS.Tensor((1, 10, 14, 3), "int8"):
        with RS.dataflow():
            padded = RS.nn.pad(x, pad_width=(0, 0, 0, 0, 1, 1, 2, 3), pad_value=-7.0)
            result = RS.permute_dims(padded, axes=[0, 2, 3, 1])
            RS.output(result)
        return result


@I.ir_module
class After:
    @RS.function
    def main(x: RS.Tensor((1, 3, 8, 9), "int8")) -> RS.Tensor((1, 10, 14, 3), "int8"):
        with RS.dataflow():
            moved = RS.permute_dims(x, axes=[0, 2, 3, 1])
            result = RS.nn.pad(moved, pad_width=(0, 0, 1, 1, 2, 3, 0, 0), pad_value=-7.0)
            RS.output(result)
        return result


@I.ir_module
class Reflected:
    @RS.function
    def main(x: RS.Tensor((1, 3, 8, 9), "float32")) -> RS.Tensor((1, 10, 11, 3), "float32"):
        with RS.dataflow():
            padded = RS.nn.pad(x, pad_width=(0, 0, 0, 0, 1, 1, 1, 1), pad_mode="reflect")
            result = RS.permute_dims(padded, axes=[0, 2, 3, 1])
            RS.output(result)
        return result


def test_a_border_is_carried() -> None:
    tvm.ir.assert_structural_equal(CarriedPads()(Before), After)


def test_a_border_of_more_than_one_value_stays() -> None:
    tvm.ir.assert_structural_equal(CarriedPads()(Reflected), Reflected)
