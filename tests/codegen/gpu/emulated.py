# SPDX-License-Identifier: Apache-2.0
"""Run a graph of one kernel in the emulator, on fresh random inputs, next to float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuda_emulator import lower, run_lowered
from stitch_testing.random.graphs import emulated_target
from stitch_testing.reference.relax import evaluate, mismatches
from tests.graph.helpers import build
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING

TARGET = emulated_target()
TOLERANCE = {"float32": (2e-5, 2e-5), "float16": (4e-3, 4e-3), "bfloat16": (3e-2, 3e-2)}


def checked(body: Any, tolerance: dict[str, tuple[float, float]], *specs: Any) -> str:
    """Return the code of the one kernel, and check its results."""
    mod = build(body, *specs)
    rng = np.random.default_rng()
    inputs = [(rng.standard_normal(shape) * 4).astype(np.dtype(dtype)) for shape, dtype in specs]
    artifact = lower(mod, TARGET, pipeline(TARGET, None), LOWERING)
    run = run_lowered(artifact, inputs).check()
    assert len(run.launches) == 1
    assert mismatches(list(run.outputs), evaluate(mod, inputs), tolerance) == []
    return artifact.source
