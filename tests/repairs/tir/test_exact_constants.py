# SPDX-License-Identifier: Apache-2.0
"""Constants in CUDA C have all their bits, in stitched kernels and in what is left to TVM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op as R

from cuda_emulator import lower, run_lowered
from tests.graph.helpers import build
from tests.repairs import faults
from tests.repairs.schedule.test_sound_arithmetic import CUDA, left_to_tvm
from tvm_stitch.relax import pipeline
from tvm_stitch.repairs.tir.exact_constants import is_written_exactly

VALUES = [0.1, -2 / 3, 1e-20 / 3, 1e-310, 123456789.123456789, 1e300 / 7, -0.0, 0.5]


@pytest.mark.parametrize("left", [False, True], ids=["stitched", "left to TVM"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_constant_keeps_its_bits(dtype: str, left: bool) -> None:
    values = [value for value in VALUES if dtype == "float64" or 1e-37 < abs(value) < 1e38 or value == 0]
    x = np.float64(2.0) ** np.arange(-4, 4)
    x = x.astype(dtype)

    def model(emit, x):  # type: ignore[no-untyped-def]
        return [R.multiply(x, relax.const(value, dtype)) for value in values]

    passes = left_to_tvm(CUDA) if left else pipeline(CUDA)
    got = run_lowered(lower(build(model, ((8,), dtype)), CUDA, passes), [x]).outputs
    for result, value in zip(got, values, strict=True):
        np.testing.assert_array_equal(result, x * np.dtype(dtype).type(value))


@pytest.mark.parametrize(
    ("value", "dtype", "exact"),
    [
        (1 / 3, "float32", True), (1 / 3, "float64", False), (0.1, "float64", True), (1e-20, "float64", False),
        (-0.0, "float64", True), (1e300, "float64", True), (float("inf"), "float64", True),
    ],
)  # fmt: skip
def test_what_is_written_exactly(value: float, dtype: str, exact: bool) -> None:
    assert is_written_exactly(value, dtype) is exact


def scaled(passes: Any) -> float:
    mod = build(lambda emit, x: R.multiply(x, relax.const(1e-20, "float64")), ((4,), "float64"))
    return float(faults.on_gpu(mod, [np.ones(4)], passes).outputs[0][0])


def test_fault() -> None:
    faults.needed(scaled(None) != 1e-20, "tir/exact_constants.py")


def test_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scaled(faults.ours(CUDA)) == 1e-20
    monkeypatch.setattr(faults.module_of("codegen.emit"), "exact_constants", lambda func: func)
    assert scaled(faults.ours(CUDA)) != 1e-20
