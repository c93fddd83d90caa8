# SPDX-License-Identifier: Apache-2.0
"""A tensor is transposed before it is padded, not the other way."""

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

from tests.graph.helpers import build
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.layout.pads import SinkPads
from tvm_stitch.target import this_cpu

HERE = tvm.target.Target(this_cpu())


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


def test_a_border_is_sunk() -> None:
    tvm.ir.assert_structural_equal(SinkPads()(Before), After)


def test_a_border_of_more_than_one_value_stays() -> None:
    tvm.ir.assert_structural_equal(SinkPads()(Reflected), Reflected)


@pytest.mark.parametrize("border", ["one", "two"])
def test_a_border_is_part_of_a_convolution(border: str) -> None:
    """Of any value, in the kernel of the one convolution that reads it, with its transposition."""
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 9)).astype("float32")
    w = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype("float32")

    def body(emit: Any, v: Any) -> list[Any]:
        padded = emit(R.nn.pad(v, [0, 0, 0, 0, 1, 1, 2, 0], pad_value=2.5))
        return [R.nn.conv2d(padded, relax.const(w), padding=1 if border == "two" else 0)]

    mod = build(body, (x.shape, "float32"))
    executable = tvm.compile(mod, HERE, relax_pipeline=pipeline(HERE))
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    wide = torch.nn.functional.pad(torch.tensor(x), (2, 0, 1, 1), value=2.5)
    expected = torch.nn.functional.conv2d(wide, torch.tensor(w), padding=1 if border == "two" else 0)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)
    assert count_kernels(mod, HERE, pipeline(HERE)).total == (2 if border == "two" else 1)
