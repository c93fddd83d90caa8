# SPDX-License-Identifier: Apache-2.0
"""Grid-wide plans on CUDA under a TVM with Relay, in the emulator: phases as kernels of one function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relay

from tests.relay.codegen.gpu_kernels import check
from tvm_stitch.plan.grid import GridPlan

WIDE = {"float32": (2e-4, 2e-4), "float16": (2e-2, 2e-2), "bfloat16": (6e-2, 6e-2)}
"""Sums over thousands of rows lose more than one rounding."""


def layer_norm_backward(x: Any, dy: Any, scale: Any) -> list[Any]:
    mean = relay.mean(x, -1, keepdims=True)
    centred = x - mean
    rstd = relay.rsqrt(relay.mean(centred * centred, -1, keepdims=True) + relay.const(1e-5, "float32"))
    normed = centred * rstd
    g = dy * scale
    inner = relay.mean(g * normed, -1, keepdims=True)
    dx = rstd * (g - relay.mean(g, -1, keepdims=True) - normed * inner)
    return [dx, relay.sum(dy * normed, 0), relay.sum(dy, 0)]


def np_layer_norm_backward(x: np.ndarray, dy: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
    centred = x - x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    normed = centred * rstd
    g = dy * scale
    dx = rstd * (g - g.mean(-1, keepdims=True) - normed * (g * normed).mean(-1, keepdims=True))
    return [dx, (dy * normed).sum(0), dy.sum(0)]


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (100, 77), (700, 256)], ids=str)
def test_layer_norm_backward(shape: tuple[int, int]) -> None:
    kernel = check([shape, shape, shape[-1:]], "float32", layer_norm_backward, np_layer_norm_backward, WIDE)
    if shape[0] > 2:
        assert isinstance(kernel.plan, GridPlan) and not kernel.plan.cooperative
        assert kernel.kernels.count("__launch_bounds__") == 2 * len(kernel.plan.phases)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 5), (33, 1), (1000, 48), (130, 515)], ids=str)
def test_column_sums(shape: tuple[int, int], dtype: str) -> None:
    def body(x: Any) -> Any:
        return relay.sum(relay.tanh(relay.cast(x, "float32")), 0)

    check([shape], dtype, body, lambda x: np.tanh(x).sum(0), WIDE)


def test_sums_over_everything() -> None:
    def body(x: Any) -> list[Any]:
        total = relay.sum(x)
        return [total, relay.exp(x / (total * total + relay.const(1.0, "float32")))]

    check([(300, 41)], "float32", body, lambda x: [x.sum(), np.exp(x / (x.sum() ** 2 + 1))], WIDE)


def test_three_phases() -> None:
    """Normalised by columns, then by rows, then summed by columns again."""

    def body(x: Any) -> Any:
        by_columns = x / (relay.sum(relay.exp(x), 0) + relay.const(1.0, "float32"))
        by_rows = by_columns / (relay.sum(relay.exp(by_columns), 1, keepdims=True))
        return relay.sum(by_rows * by_rows, 0)

    def reference(x: np.ndarray) -> np.ndarray:
        by_columns = x / (np.exp(x).sum(0) + 1)
        by_rows = by_columns / np.exp(by_columns).sum(1, keepdims=True)
        return (by_rows**2).sum(0)

    kernel = check([(200, 65)], "float32", body, reference, {"float32": (2e-4, 1e-7)})
    assert isinstance(kernel.plan, GridPlan) and len(kernel.plan.phases) >= 3


def test_a_softmax_along_columns_feeds_one_along_rows() -> None:
    def softmax(x: np.ndarray, axis: int) -> np.ndarray:
        e = np.exp(x - x.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    check(
        [(150, 40)],
        "float32",
        lambda x: relay.nn.softmax(relay.nn.softmax(x, 0), 1),
        lambda x: softmax(softmax(x, 0), 1),
        WIDE,
    )


def test_scratch_is_a_workspace_of_the_host_code() -> None:
    """No parameter is added; every run takes new memory that nobody has written."""
    kernel = check(
        [(1000, 48)], "float32", lambda x: relay.sum(relay.exp(x), 0), lambda x: np.exp(x).sum(0), WIDE
    )
    assert isinstance(kernel.plan, GridPlan) and kernel.plan.scratch
    assert len(kernel.func.params) == 2
    assert "scratch0" in kernel.kernels
