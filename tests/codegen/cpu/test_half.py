# SPDX-License-Identifier: Apache-2.0
"""Rounding to bfloat16 on a CPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from tests.graph.helpers import build


@pytest.mark.parametrize("operator", [None, R.negative, R.nn.relu])
def test_whatever_its_bits_a_nan_stays_one(operator: Any) -> None:
    """TVM rounds them as well: some become zeros, others infinities."""
    bits = [0x7F800001, 0xFF800001, 0x7FC00000, 0x7FFF7FFF, 0x7FFF8000, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFF8000]
    x = np.array(bits * 5, np.uint32).view(np.float32)

    def body(emit: Any, x: Any) -> list[Any]:
        return [R.astype(x if operator is None else emit(operator(x)), "bfloat16")]

    vm = relax.VirtualMachine(tvm_stitch.compile(build(body, (x.shape, "float32"))), tvm.cpu())
    assert np.isnan(vm["main"](tvm.runtime.tensor(x)).numpy().astype("float32")).all()


def test_numbers_and_infinities_are_rounded_to_nearest_even() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2**32, 4096, np.uint32).view(np.float32)
    x = np.concatenate([x[~np.isnan(x)], np.array([np.inf, -np.inf, 0, -0.0, 3.3961775e38], np.float32)])
    mod = build(lambda emit, x: [R.astype(emit(R.negative(x)), "bfloat16")], (x.shape, "float32"))
    vm = relax.VirtualMachine(tvm_stitch.compile(mod), tvm.cpu())
    result = vm["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(result.view(np.uint16), (-x).astype(ml_dtypes.bfloat16).view(np.uint16))
