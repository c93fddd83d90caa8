# SPDX-License-Identifier: Apache-2.0
"""Floor division and modulo of integers under a TVM with Relay, which lowers them wrongly for bounded dividends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relay

from tests.relay.codegen import gpu_kernels, kernels

RUN = {
    "llvm": lambda f, *inputs: kernels.Kernel(f)(*inputs),
    "cuda": lambda f, *inputs: gpu_kernels.GpuKernel(f)(*inputs).check().outputs,
}


@pytest.mark.parametrize("target", RUN)
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
@pytest.mark.parametrize("divisor", [1, 3, 4, 7, -1, -3, -8])
def test_of_sums(target: str, dtype: str, divisor: int) -> None:
    def body(x: Any, y: Any) -> list[Any]:
        moved, by = x + relay.const(2, dtype), relay.const(divisor, dtype)
        return [
            relay.floor_mod(moved, by), relay.floor_divide(moved, by), relay.floor_mod(moved, y),
            relay.floor_divide(moved, y),
        ]  # fmt: skip

    x = np.arange(-60, 60).astype(dtype)
    y = np.where(np.arange(120) % 17 == 8, 5, np.arange(120) % 17 - 8).astype(dtype)
    function = gpu_kernels.function([(120,), (120,)], dtype, body)
    by = np.dtype(dtype).type(divisor)
    expected = [np.mod(x + 2, by), (x + 2) // by, np.mod(x + 2, y), (x + 2) // y]
    for got, want in zip(RUN[target](function, x, y), expected, strict=True):
        np.testing.assert_array_equal(got, want)
