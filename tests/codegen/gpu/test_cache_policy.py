# SPDX-License-Identifier: Apache-2.0
"""Loads under a cache policy bring the same elements as others, of every dtype and in pieces of every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm.relax import op as R

from cuda_emulator import lower, run_lowered
from tests.graph.helpers import build
from tvm_stitch.plan import heuristics
from tvm_stitch.relax import pipeline
from tvm_stitch.testing.random_graphs import emulated_target
from tvm_stitch.testing.reference import evaluate, mismatches

TARGET = emulated_target()
TOLERANCE = {"float32": (2e-5, 2e-5), "float16": (4e-3, 4e-3), "bfloat16": (3e-2, 3e-2)}
HINT = "L2__cache_hint"


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel overflows the second-level cache."""
    monkeypatch.setattr(heuristics, "CACHES_FILLED", 0)


def norm(emit: Any, x: Any, w: Any) -> Any:
    return emit(R.nn.rms_norm(x, w, axes=[-1]))


def checked(body: Any, *specs: Any) -> str:
    """The code of the one kernel, which is right."""
    mod = build(body, *specs)
    rng = np.random.default_rng()
    inputs = [(rng.standard_normal(shape) * 4).astype(np.dtype(dtype)) for shape, dtype in specs]
    artifact = lower(mod, TARGET, pipeline(TARGET, None))
    run = run_lowered(artifact, inputs).check()
    assert len(run.launches) == 1
    assert mismatches(list(run.outputs), evaluate(mod, inputs), TOLERANCE) == []
    return artifact.source


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("columns", [776, 998, 997, 4096, 40_000])
def test_rows_in_registers_and_in_shared_memory(columns: int, dtype: str) -> None:
    source = checked(norm, ((3, columns), dtype), ((columns,), dtype))
    assert (HINT in source) == (columns % 2 == 0 or dtype == "float32")


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "float64"])
def test_other_element_sizes(dtype: str) -> None:
    def twice(emit: Any, x: Any) -> Any:
        return emit(R.add(x, x))

    assert HINT in checked(twice, ((1024, 1024), dtype))


def test_the_cache_decides_where_it_holds_all() -> None:
    assert HINT not in checked(norm, ((3, 4096), "float32"), ((4096,), "float32"))
