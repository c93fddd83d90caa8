# SPDX-License-Identifier: Apache-2.0
"""Pools of ONNX's cases are the same by windows of NumPy as by ONNX's loop."""

from __future__ import annotations

import numpy as np
import pytest

from stitch_testing.onnx_cases import collect_cases, pooled


@pytest.mark.parametrize("kind", ["MAX", "AVG", "LPPOOL"])
def test_pools(kind: str) -> None:
    from onnx.reference.ops.op_pool_common import pool

    kernel, strides = (2, 3, 2), (1, 2, 3)
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 8, 11)).astype("float32")
    extents = [(d - k) // s + 1 for d, k, s in zip(x.shape[2:], kernel, strides)]
    wanted = pool(x, x.shape, kernel, strides, extents, kind, p=3)
    got = pooled(x, kernel, strides, kind, 3)
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(got, wanted, 1e-6, 1e-6)


def test_all_cases_are_there() -> None:
    names = {case.name for case in collect_cases()}
    assert {"test_averagepool_3d_default", "test_lppool_3d_default", "test_softmax_axis_2"} <= names
