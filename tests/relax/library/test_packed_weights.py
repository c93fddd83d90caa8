# SPDX-License-Identifier: Apache-2.0
"""Computed weights are packed as constant ones are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.compute.cuda.test_convolution import PLAIN, convolution
from tvm_stitch.compute.cuda.convolution import packed_weight
from tvm_stitch.compute.cuda.convolution_plan import ConvolutionPlan, ImageConvolution, Tile
from tvm_stitch.relax.library.image_convolutions import OwnConvolution
from tvm_stitch.relax.library.packed_weights import packed

RNG = np.random.default_rng()
PLANS = [PLAIN, ConvolutionPlan(Tile(128, 128, 1), 2, 3, True)]


def evaluated(
    c: ImageConvolution, weight: np.ndarray, inputs_first: bool, turned: bool, plan: Any
) -> np.ndarray:
    """Return the results of the operators."""
    builder = relax.BlockBuilder()
    with builder.function("main", [w := relax.Var("w", relax.TensorType(weight.shape, "float32"))]):
        with builder.dataflow():
            found = OwnConvolution(c, w, w, inputs_first, turned, ())
            out = builder.emit_output(packed(builder, found, plan))
        builder.emit_func_output(out)
    vm = relax.VirtualMachine(tvm.compile(builder.get(), "llvm"), tvm.cpu())
    return vm["main"](tvm.runtime.tensor(weight)).numpy()


@pytest.mark.parametrize("plan", PLANS, ids=["by place", "gathered"])
@pytest.mark.parametrize(("inputs_first", "turned"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("window", [(3, 2), (1, 1), (4, 4)], ids=str)
def test_as_constants(
    plan: ConvolutionPlan, inputs_first: bool, turned: bool, groups: int, window: tuple[int, int]
) -> None:
    c = convolution(1, 15, 21, (9, 9), window, groups=groups)
    weight = RNG.standard_normal((groups, c.outputs, c.inputs, *window)).astype("float32")
    wanted = packed_weight(weight.reshape(-1, c.inputs, *window), c, plan)
    if turned:
        weight = np.flip(weight, (3, 4))
    if inputs_first:
        weight = weight.swapaxes(1, 2)
    given = np.ascontiguousarray(weight).reshape(-1, weight.shape[2], *window)
    np.testing.assert_array_equal(evaluated(c, given, inputs_first, turned, plan), wanted)


def test_what_fills_whole_tiles_is_not_padded() -> None:
    c = convolution(1, 16, 64, (9, 9))
    weight = RNG.standard_normal((64, 16, 3, 3)).astype("float32")
    found = evaluated(c, weight, False, False, PLAIN)
    assert found.size == weight.size == math.prod((64, 16, 9))
