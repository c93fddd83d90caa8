# SPDX-License-Identifier: Apache-2.0
"""Random chains of products of few rows have the numbers of float64, and no kernel of them is unsound."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_stitch.relax
from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from tests.relax.few_rows.random_chains import random_chain

TOLERANCE = {"float32": 2e-5, "float16": 3e-2, "bfloat16": 2e-1}
"""Most error of up to nine steps, each rounded to its type, relative to the largest element of a result."""


@pytest.mark.parametrize("seed", range(5))
def test_a_random_chain(seed: int) -> None:
    chain, target = random_chain(seed), emulated_target()
    run = run_cuda(
        chain.mod, chain.inputs, relax_pipeline=tvm_stitch.relax.pipeline(target), target=target
    ).check()
    for mine, exact in zip(run.outputs, chain.results, strict=True):
        error = np.abs(mine.astype("float64") - exact).max() / max(1e-6, np.abs(exact).max())
        assert error < TOLERANCE[str(chain.inputs[0].dtype)], chain.steps
