# SPDX-License-Identifier: Apache-2.0
"""Conditions are booleans, not comparisons of integers that booleans were cast to."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from tvm import tirx
from tvm.relax import op as R

from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import build, emulated, graph, running_maximum
from tvm_stitch import compat
from tvm_stitch.graph.rewrite.conditions import plain_conditions
from tvm_stitch.relax import pipeline

B, N = tirx.Var("b", "bool"), tirx.Var("n", "int64")
ZERO = tirx.const(0, "int64")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (tirx.LT(ZERO, tirx.Cast("int64", B)), "b"),
        (tirx.NE(tirx.Cast("int32", B), tirx.const(0, "int32")), "b"),
        (tirx.Select(tirx.LT(ZERO, tirx.Cast("int64", B)), N, ZERO), "T.Select(b, n, T.int64(0))"),
        (tirx.LT(ZERO, tirx.Cast("int64", N < ZERO)), "n < T.int64(0)"),
        (tirx.LT(tirx.Cast("int64", B), ZERO), None),
        (tirx.LT(tirx.const(0.0, "float32"), tirx.Cast("float32", B)), None),
        (tirx.LT(ZERO, tirx.Cast("int64", tirx.Cast("int32", N))), None),
        (tirx.LT(tirx.const(1, "int64"), tirx.Cast("int64", B)), None),
    ],
)
def test_conditions(value: Any, wanted: str | None) -> None:
    made = plain_conditions(value)
    assert compat.dtype_of(made) == compat.dtype_of(value)
    assert str(made) == (str(value) if wanted is None else wanted)


def test_the_reader_writes_them() -> None:
    mod = build(
        lambda emit, x, y: R.where(emit(R.less(x, y)), x, y), ((4, 8), "float32"), ((4, 8), "float32")
    )
    (where,) = [op for op in graph(mod).operators if "where" in op.name]
    assert "Cast" not in str(where.value)


def test_a_running_maximum_is_lowered_in_seconds() -> None:
    """Three steps took eight times as long: TVM simplified comparisons in comparisons."""
    mod, x = (
        build(running_maximum(1, 2, 4), ((2, 16), "int64")),
        np.random.default_rng(0).integers(-9, 9, (2, 16)),
    )
    start = time.process_time()
    with emulated_target() as target:
        pipeline(target)(mod)
    assert time.process_time() - start < 5
    windows = np.pad(x, ((0, 0), (7, 0)), constant_values=-9)
    wanted = np.lib.stride_tricks.sliding_window_view(windows, 8, 1).max(-1)
    np.testing.assert_array_equal(emulated(mod, x)[0], wanted)
