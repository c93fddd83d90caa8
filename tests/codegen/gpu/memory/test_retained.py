# SPDX-License-Identifier: Apache-2.0
"""Kernels that keep what later phases read: right in the emulator, without a race, and without a second load."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm.relax import op as R

import tvm_stitch.relax
from cuda_emulator import lower
from stitch_testing.random.graphs import emulated_target
from stitch_testing.resources import has_compiler, kernel_resources
from tests.graph.helpers import build, check_emulated, cuda_source, draw
from tests.plan.reread import column_softmax, gradient
from tvm_stitch.config import StitchConfig
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING
from tvm_stitch.testing.workloads import grid_cases
from tvm_stitch.testing.workloads.grid_case import GridCase

F32 = "float32"
Body = Callable[..., Any]


def kept_by(mod: Any, config: StitchConfig) -> InterPhaseReuse | None:
    """Compile, and tell what the only kernel retains."""
    recorder = Recorder()
    lower(mod, emulated_target(), tvm_stitch.relax.pipeline(emulated_target(), config, recorder), LOWERING)
    (plan,) = recorder.plans.values()
    assert plan.grid_wide
    return plan.retention


def few(sms: int) -> StitchConfig:
    return StitchConfig(multiprocessors=sms, clusters=False, strict=True)


CASES = [
    (grid_cases.batch_norm_training(4096, 16), 1),
    (grid_cases.batch_norm_training(2051, 24), 2),
    (grid_cases.batch_norm_training(5000, 256), 3),
    (grid_cases.batch_norm_training(30011, 64), 4),
    (grid_cases.standardize_by_max(1200, 1024), 2),
    (grid_cases.standardize_by_max(1111, 1021), 3),
]


@pytest.mark.parametrize(("case", "sms"), CASES, ids=lambda v: str(getattr(v, "label", v)))
@pytest.mark.parametrize("seed", [0, 1])
def test_cases(case: GridCase, sms: int, seed: int) -> None:
    check_emulated(case.build(), case.inputs(np.random.default_rng(seed)), config=few(sms), seed=seed)


def test_the_cases_retain() -> None:
    """Data is retained in shared memory, in registers, and in both. It is the whole data or a part."""
    found = [kept_by(case.build(), few(sms)) for case, sms in CASES]
    assert sum(kept is not None for kept in found) >= 5
    assert any(kept and kept.shared and kept.registers for kept in found)
    assert any(kept and kept.tasks < kept.stages[0].tasks // kept.stages[0].stride for kept in found)


def cast(emit: Callable[..., Any], x: Any) -> Any:
    """Columns minus their mean, of integers."""
    return emit(R.subtract(emit(R.astype(x, "float32")), emit(R.mean(emit(R.astype(x, "float32")), 0, True))))


@pytest.mark.parametrize("rows", [512, 4099])
@pytest.mark.parametrize("sms", [1, 3])
@pytest.mark.parametrize(
    ("body", "dtypes"),
    [
        (column_softmax, [F32]),
        (column_softmax, ["float16"]),
        (column_softmax, ["bfloat16"]),
        (gradient, [F32, F32]),
        (gradient, ["float16", "float16"]),
        (cast, ["int8"]),
        (cast, ["uint8"]),
    ],
    ids=lambda v: v.__name__ if callable(v) else "-".join(v),
)
def test_types_and_several_inputs(body: Body, dtypes: list[str], sms: int, rows: int) -> None:
    specs = [((rows, 32), dtype) for dtype in dtypes]
    check_emulated(build(body, *specs), draw(specs), config=few(sms))


def test_shared_memory_is_asked_for_and_read() -> None:
    mod, config = grid_cases.batch_norm_training(30011, 64).build(), few(4)
    kept = kept_by(mod, config)
    assert kept is not None and kept.shared
    source = lower(
        mod, emulated_target(), tvm_stitch.relax.pipeline(emulated_target(), config), LOWERING
    ).source
    assert len(re.findall(r"for \(\w+ kept\w* = ", source)) == 2  # one that fills, one that reads


@pytest.mark.skipif(not has_compiler(), reason="needs nvcc")
@pytest.mark.parametrize(
    ("body", "dtypes"),
    [(column_softmax, ["bfloat16"]), (gradient, [F32, F32])],
    ids=["softmax-bfloat16", "gradient-float32"],
)
def test_no_spills_at_full_size(body: Body, dtypes: list[str]) -> None:
    specs = [((131072, 256), dtype) for dtype in dtypes]
    (used,) = kernel_resources(cuda_source(build(body, *specs))).values()
    assert used.spilled == used.stack == 0
