# SPDX-License-Identifier: Apache-2.0
"""Norms, activations and residuals around products on matrix units, and blocks of several tasks."""

from __future__ import annotations

import numpy as np
import pytest

from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import emulated
from tests.relax.few_rows import models
from tvm_stitch import explain


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_layer_with_its_norm_and_activation(rows: int, gated: bool) -> None:
    case = rows, 72, 256, 4, "float16", gated
    mod = models.layer(*case, group=32)
    arrays, wanted = models.drawn(*case, group=32)
    (found,) = emulated(mod, *arrays)
    assert np.abs(found.astype("float64") - wanted).max() <= 2e-3 * np.abs(wanted).max()
    report = explain(mod, emulated_target())
    assert len(report.kernels) == 1 and "by matrix units" in report.verbose()


@pytest.mark.parametrize(("columns", "slices"), [(72_000, 1), (17_000, 4)])
def test_blocks_of_several_tasks(columns: int, slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block of the grid computes the norm, and then several groups of rows of weights."""
    monkeypatch.setattr("tvm_stitch.plan.rows.matrix._shares", lambda *sizes: (slices, 1, 1))
    case = 1, columns, 128 * slices, 4, "float16"
    mod = models.layer(*case, group=32)
    arrays, wanted = models.drawn(*case, group=32)
    (found,) = emulated(mod, *arrays)
    assert np.abs(found.astype("float64") - wanted).max() <= 2e-3 * np.abs(wanted).max()
    assert f"{slices} warps a tile" in explain(mod, emulated_target()).verbose()
