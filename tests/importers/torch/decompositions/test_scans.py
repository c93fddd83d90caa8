# SPDX-License-Identifier: Apache-2.0
"""Running extremes and logarithms of running sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import tvm

from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import LLVM, emulated, prim_funcs
from tests.importers.torch.programs import compare, imported
from tvm_stitch.relax import pipeline


def test_running_extremes() -> None:
    x = torch.randn(3, 7)
    x[0, 2], x[1, 3] = math.nan, x[1, 1]
    compare(
        {
            "greatest": lambda x: [*x.cummax(1), *x.cummax(0), *(x * 4).nan_to_num().long().cummax(-1)],
            "least": lambda x: [*x.cummin(1), *x.cummin(0)],
            "alone": lambda x: [*x[0, 0].cummax(0), *x[:, :1].cummin(1)],
        },
        x,
    )


def test_logarithms_of_running_sums() -> None:
    x = torch.randn(3, 9) * 40  # sums of exponentials overflow
    compare({"logcumsumexp": lambda x: [x.logcumsumexp(1), x.logcumsumexp(0)]}, x, tolerance=1e-5)


@pytest.mark.parametrize("target", [LLVM, emulated_target()], ids=["llvm", "cuda"])
@pytest.mark.parametrize("name", ["cummax", "logcumsumexp"])
def test_code_grows_with_the_steps_of_a_scan(target: tvm.target.Target, name: str) -> None:
    """A kernel of five steps that inlined each into the next would have hundreds of times the code of two."""
    sizes = []
    for columns in (4, 32):
        mod = imported(lambda x: getattr(x, name)(1), torch.randn(4, columns))
        with target:
            made = pipeline(target)(mod)
        sizes.append(sum(len(func.script()) for func in prim_funcs(made).values()))
    assert sizes[1] < 10 * sizes[0]


def test_running_extremes_in_several_kernels_for_cuda() -> None:
    x = torch.randn(3, 40)
    values, index = (y.numpy() for y in x.cummax(1))
    got = emulated(imported(lambda x: tuple(x.cummax(1)), x), x.numpy())
    np.testing.assert_array_equal(got[0], values)
    np.testing.assert_array_equal(got[1], index)
