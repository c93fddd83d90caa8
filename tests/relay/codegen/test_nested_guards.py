# SPDX-License-Identifier: Apache-2.0
"""Concats of concats under a TVM with Relay: indices under several conditions stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relay

from tests.relay.codegen import gpu_kernels, kernels

CHECKS = {"llvm": kernels.check, "cuda": gpu_kernels.check}


@pytest.mark.parametrize("target", CHECKS)
@pytest.mark.parametrize("shape", [(8, 4), (3, 5), (2, 257), (1, 16)], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_concats_of_concats(target: str, shape: tuple[int, int], axis: int) -> None:
    def body(x: Any) -> Any:
        inner = relay.abs(relay.concatenate([x, x, x], axis))
        return relay.concatenate([inner, inner, inner], axis)

    def reference(x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.abs(x)] * 9, axis)

    CHECKS[target]([shape], "float32", body, reference)


@pytest.mark.parametrize("target", CHECKS)
def test_pads_of_concats_of_slices(target: str) -> None:
    def body(x: Any) -> Any:
        part = relay.strided_slice(x, [0, 4], [8, 12])
        joined = relay.exp(relay.concatenate([part, x, part], 1))
        return relay.nn.pad(relay.nn.pad(joined, ((0, 0), (4, 0))), ((0, 0), (8, 4)))

    def reference(x: np.ndarray) -> np.ndarray:
        joined = np.exp(np.concatenate([x[:, 4:12], x, x[:, 4:12]], 1))
        return np.pad(np.pad(joined, ((0, 0), (4, 0))), ((0, 0), (8, 4)))

    CHECKS[target]([(8, 16)], "float32", body, reference)
