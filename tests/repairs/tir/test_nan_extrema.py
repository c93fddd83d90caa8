# SPDX-License-Identifier: Apache-2.0
"""Maxima and minima in CUDA C: TVM's drop a NaN, those of stitched kernels keep it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm.relax import op as R

from tests.graph.helpers import build
from tests.repairs import faults
from tvm_stitch.compat import tir


def is_nan_kept(passes: Any) -> bool:
    mod = build(lambda emit, x, y: R.maximum(x, y), ((4,), "float32"), ((4,), "float32"))
    inputs = [np.full(4, np.nan, "float32"), np.ones(4, "float32")]
    return bool(np.isnan(faults.on_gpu(mod, inputs, passes).outputs[0]).all())


def test_fault() -> None:
    faults.needed(not is_nan_kept(None), "tir/nan_extrema.py")


def test_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_nan_kept(faults.ours(faults.CUDA))
    plain = lambda maximum, a, b: (tir.Max if maximum else tir.Min)(a, b)  # noqa: E731
    monkeypatch.setattr(faults.module_of("repairs.tir.arithmetic"), "maximum_or_minimum", plain)
    assert not is_nan_kept(faults.ours(faults.CUDA))
