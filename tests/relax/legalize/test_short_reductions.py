# SPDX-License-Identifier: Apache-2.0
"""Sums of a few elements, and pools of small windows, load vectors if neighbouring results read neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.codegen.gpu.memory.test_piecewise_loads import widest_load
from tests.graph.helpers import build, check_emulated, cuda_source, draw, emulated
from tvm_stitch.relax.legalize.short_reductions import ShortReductions

POOLED = [
    {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)},
    {"pool_size": (2, 2), "strides": (2, 2)},
    {"pool_size": (2, 2), "strides": (2, 2), "ceil_mode": True},
    {"pool_size": (3, 2), "strides": (1, 2), "padding": (0, 1, 1, 0), "dilation": (2, 1)},
    {"pool_size": (1, 3), "strides": (1, 1), "padding": (0, 1, 0, 1)},
]


def pool(name: str, shape: tuple[int, ...], dtype: str, layout: str = "NHWC", **options: Any) -> tvm.IRModule:
    return build(lambda emit, x: getattr(R.nn, name)(x, layout=layout, **options), (shape, dtype))


def short_sum(shape: tuple[int, ...], axis: int, dtype: str, keepdims: bool = False) -> tvm.IRModule:
    return build(lambda emit, x: R.nn.relu(emit(R.sum(x, axis, keepdims))), (shape, dtype))


def is_rewritten(mod: tvm.IRModule) -> bool:
    return any(isinstance(f, tvm.tirx.PrimFunc) for f in ShortReductions(CHOICES)(mod).functions.values())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((60, 41, 2, 64), 2), ((3, 31, 1024), 0), ((4, 4, 7, 40), 1)])
def test_sums(shape: tuple[int, ...], axis: int, keepdims: bool, dtype: str) -> None:
    mod = short_sum(shape, axis, dtype, keepdims)
    assert is_rewritten(mod)
    check_emulated(mod, draw([(shape, dtype)]))


def test_sums_load_vectors() -> None:
    assert widest_load(cuda_source(short_sum((6, 5000, 2, 64), 2, "float16")), "x0") == 16


@pytest.mark.parametrize(
    ("shape", "axis", "dtype"),
    [
        ((64, 2), 1, "float32"),
        ((8, 5, 64), 1, "float32"),
        ((8, 2, 12), 1, "float32"),
        ((8, 2, 64), 1, "int32"),
    ],
    ids=["a row is contiguous", "many elements", "rows that no vector divides", "integers"],
)
def test_sums_that_stay(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    assert not is_rewritten(short_sum(shape, axis, dtype))


def windows(x: np.ndarray, outside: float, options: dict[str, Any]) -> np.ndarray:
    """Return the elements of each window, last. Elements outside the image have one value."""
    (rows, columns), dilation = options["pool_size"], options.get("dilation", (1, 1))
    strides, (top, left, below, right) = options["strides"], options.get("padding", (0, 0, 0, 0))
    wide = np.pad(x, ((0, 0), (top, below + 1), (left, right + 1), (0, 0)), constant_values=outside)
    ends = [(n - 1) * d for n, d in zip((rows, columns), dilation)]
    sides = (x.shape[1] + top + below - ends[0], x.shape[2] + left + right - ends[1])
    if options.get("ceil_mode"):
        sides = tuple(-(-(side - 1) // stride) * stride + 1 for side, stride in zip(sides, strides))
    taps = [
        wide[:, r * dilation[0] :, c * dilation[1] :][:, : sides[0] : strides[0], : sides[1] : strides[1]]
        for r in range(rows)
        for c in range(columns)
    ]
    return np.stack(taps, -1).astype("float64")


@pytest.mark.parametrize("options", POOLED, ids=str)
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_means(options: dict[str, Any], counts: bool, dtype: str) -> None:
    shape = (3, 16, 18, 16)
    mod = pool("avg_pool2d", shape, dtype, count_include_pad=counts, **options)
    assert is_rewritten(mod)
    (x,) = draw([(shape, dtype)])
    taps = windows(x, 0.0, options)
    counted = np.prod(options["pool_size"]) if counts else windows(np.ones_like(x), 0.0, options).sum(-1)
    (got,) = emulated(mod, x)
    np.testing.assert_allclose(got, taps.sum(-1) / counted, *[1e-6 if dtype == "float32" else 1e-3] * 2)


@pytest.mark.parametrize("options", POOLED, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_maxima(options: dict[str, Any], dtype: str) -> None:
    shape = (3, 13, 18, 16)
    mod = pool("max_pool2d", shape, dtype, **options)
    assert is_rewritten(mod)
    (x,) = draw([(shape, dtype)], low=-5.0, high=-1.0)
    (got,) = emulated(mod, x)
    np.testing.assert_array_equal(got, windows(x, -np.inf, options).max(-1))


def test_maxima_keep_nan() -> None:
    shape = (2, 8, 8, 8)
    (x,) = draw([(shape, "float32")])
    x[1, 3, 4, 5] = np.nan
    (got,) = emulated(pool("max_pool2d", shape, "float32", pool_size=(2, 2), strides=(2, 2)), x)
    assert np.isnan(got[1, 1, 2, 5]) and np.isnan(got).sum() == 1


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
def test_pools_load_vectors(name: str) -> None:
    mod = pool(name, (8, 56, 56, 64), "float16", **POOLED[0])
    assert widest_load(cuda_source(mod), "x0") == 16


@pytest.mark.parametrize(
    ("shape", "layout", "options"),
    [
        ((2, 8, 8, 8), "NCHW", {"pool_size": (2, 2)}),
        ((2, 8, 8, 8), "NHWC", {"pool_size": (4, 4)}),
        ((2, 8, 8, 12), "NHWC", {"pool_size": (2, 2)}),
        ((2, 9, 9, 8), "NHWC", {"pool_size": (2, 2), "strides": (2, 2), "ceil_mode": True}),
    ],
    ids=[
        "channels are second",
        "a large window",
        "channels that no vector divides",
        "the last window ends outside",
    ],
)
def test_means_that_stay(shape: tuple[int, ...], layout: str, options: dict[str, Any]) -> None:
    assert not is_rewritten(pool("avg_pool2d", shape, "float16", layout, **options))
