# SPDX-License-Identifier: Apache-2.0
"""A kernel has the code of its innermost loop as few times as its extents allow."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import LLVM, build, on_llvm, prim_funcs
from tvm_stitch.relax import pipeline


def pointwise(inputs: int, outputs: int, side: int) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return a convolution of one pixel with a constant weight, its weight and its data."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((outputs, inputs, 1, 1)).astype("float32")
    data = rng.standard_normal((1, inputs, side, side)).astype("float32")
    mod = build(lambda emit, x: R.nn.conv2d(x, relax.const(weight)), (data.shape, "float32"))
    return mod, weight, data


@pytest.mark.parametrize(
    "inputs",
    [
        64,  # eight groups of steps between prefetches
        1088,  # several blocks of the reduction
        67,  # three steps behind the last group
    ],
)
def test_copies_of_the_innermost_loop(inputs: int) -> None:
    mod, weight, data = pointwise(inputs, 64, 14)
    with LLVM:
        made = pipeline(LLVM)(mod)
    (kernel,) = [f.script() for name, f in prim_funcs(made).items() if name.endswith("_tiled")]
    assert len(re.findall(r"sums0\[.*\] = sums0\[.*\] \+ ", kernel)) == 1
    assert "chain" not in kernel, "no task has fewer positions than a tile"
    assert "T.unroll(T.int64(8))" not in kernel
    (got,) = on_llvm(mod, data)
    wanted = np.einsum("oc,nchw->nohw", weight[:, :, 0, 0].astype("float64"), data)
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5 * np.abs(wanted).max())
