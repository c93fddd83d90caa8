# SPDX-License-Identifier: Apache-2.0
"""Long rows whose maxima and sums are taken in one sweep, whatever they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm.relax import op as R

from cuda_emulator import lower, run_lowered
from stitch_testing.random.graphs import emulated_target
from stitch_testing.reference.relax import evaluate, mismatches
from tests.choices import change_choices
from tests.graph.helpers import build
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING

TARGET = emulated_target()
TOLERANCE = {"float32": (2e-5, 2e-5), "float16": (4e-3, 4e-3), "bfloat16": (3e-2, 3e-2)}
ROWS = 140


@pytest.fixture(autouse=True)
def short_rows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a few thousand columns are swept as long ones are."""
    change_choices(monkeypatch, online_row_bytes=0)


def log_sum(emit: Any, x: Any) -> Any:
    wide = emit(R.astype(x, "float32"))
    top = emit(R.max(wide, axis=[-1], keepdims=True))
    total = emit(R.sum(emit(R.exp(emit(R.subtract(wide, top)))), axis=[-1], keepdims=True))
    return emit(R.add(emit(R.log(total)), top))


def checked(body: Any, rows: np.ndarray, *others: np.ndarray) -> str:
    """Return the code of the one kernel, and check its results."""
    inputs = [rows, *others]
    mod = build(body, *((x.shape, str(x.dtype)) for x in inputs))
    artifact = lower(mod, TARGET, pipeline(TARGET, None), LOWERING)
    run = run_lowered(artifact, inputs).check()
    assert len(run.launches) == 1
    assert mismatches(list(run.outputs), evaluate(mod, inputs), TOLERANCE) == []
    assert "_seen" in artifact.source
    return artifact.source


def drawn(columns: int, dtype: str = "float32") -> np.ndarray:
    return (np.random.default_rng().standard_normal((ROWS, columns)) * 4).astype(np.dtype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("columns", [5, 1000, 8192, 12_289])
def test_rows_of_any_length(columns: int, dtype: str) -> None:
    checked(log_sum, drawn(columns, dtype))


def test_rising_and_falling_rows() -> None:
    """The greatest element comes last in some rows, first in others, far from the rest."""
    rising = np.linspace(-3e4, 3e4, 6000, dtype="float32")
    checked(log_sum, np.stack([rising, rising[::-1]] * (ROWS // 2)).copy())


def test_rows_of_infinities_and_nan() -> None:
    x = drawn(6000)
    x[0] = -np.inf
    x[1, :5000] = -np.inf
    x[2, 17] = np.inf
    x[3, 4000] = np.nan
    x[4, 1:] = -np.inf
    x[5] = np.finfo("float32").min
    checked(log_sum, x)


def test_several_sums_beside_one_maximum() -> None:
    def weighted(emit: Any, x: Any, w: Any) -> Any:
        top = emit(R.max(x, axis=[-1], keepdims=True))
        e = emit(R.exp(emit(R.subtract(x, top))))
        total = emit(R.sum(e, axis=[-1]))
        dot = emit(R.sum(emit(R.multiply(e, w)), axis=[-1]))
        return emit(R.divide(dot, total))

    checked(weighted, drawn(5000), drawn(5000))


def test_a_plain_sum_beside_the_maximum() -> None:
    def both(emit: Any, x: Any) -> Any:
        mean = emit(R.mean(x, axis=[-1], keepdims=True))
        return emit(R.subtract(log_sum(emit, x), mean))

    checked(both, drawn(5000))


def test_cross_entropy_picks_an_element() -> None:
    def loss(emit: Any, x: Any, target: Any) -> Any:
        y = emit(R.nn.log_softmax(emit(R.astype(x, "float32")), axis=-1))
        return emit(R.negative(emit(R.gather_elements(y, target, axis=1))))

    target = np.random.default_rng().integers(0, 9000, (ROWS, 1))
    checked(loss, drawn(9000, "bfloat16"), target)
