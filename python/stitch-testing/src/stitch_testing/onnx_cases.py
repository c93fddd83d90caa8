# SPDX-License-Identifier: Apache-2.0
"""ONNX's own node test cases. ONNX computes their results when they are collected."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view


def collect_cases() -> list[Any]:
    """Return ONNX's node test cases. NumPy reduces large pools: ONNX's loop takes seconds."""
    from onnx.backend.test.case.node import collect_testcases
    from onnx.reference.ops import op_pool_common

    by_loops = op_pool_common.pool

    def pool(
        padded: np.ndarray,
        x_shape: Sequence[int],
        kernel: Sequence[int],
        strides: Sequence[int],
        out_shape: Sequence[int],
        kind: str,
        *more: Any,
        **options: Any,
    ) -> np.ndarray:
        if more or set(options) - {"p"} or padded.size < 4096:
            return by_loops(padded, x_shape, kernel, strides, out_shape, kind, *more, **options)
        return pooled(padded, kernel, strides or [1] * len(kernel), kind, options.get("p", 1))

    op_pool_common.pool = pool
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return collect_testcases(None)
    finally:
        op_pool_common.pool = by_loops


def pooled(x: np.ndarray, kernel: Sequence[int], strides: Sequence[int], kind: str, p: int) -> np.ndarray:
    """Return pooled images without borders. ``x`` has a batch, channels, and one axis for each extent of ``kernel``."""
    spatial = tuple(range(2, x.ndim))
    steps = (slice(None), slice(None), *(slice(None, None, stride) for stride in strides))
    windows = sliding_window_view(x, tuple(kernel), spatial)[steps]
    inner = tuple(range(-len(kernel), 0))
    if kind == "MAX":
        return windows.max(inner)
    if kind == "AVG":
        return windows.mean(inner)
    return ((np.abs(windows) ** p).sum(inner) ** (1.0 / p)).astype(x.dtype)
