# SPDX-License-Identifier: Apache-2.0
"""Halves of a product of few rows are products: a gated layer is one kernel without a barrier behind the product."""

from __future__ import annotations

import numpy as np
import pytest

from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import emulated
from tests.relax.few_rows.models import drawn, layer
from tvm_stitch import explain


@pytest.mark.parametrize(("rows", "columns", "bits", "dtype"), [(1, 24, 0, "float32"), (2, 40, 4, "float32")])
def test_a_gated_layer_is_right(rows: int, columns: int, bits: int, dtype: str) -> None:
    inputs, wanted = drawn(rows, columns, 64, bits, dtype, gated=True)
    (found,) = emulated(layer(rows, columns, 64, bits, dtype, gated=True), *inputs)
    assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()


def test_a_gated_layer_has_no_barrier() -> None:
    report = explain(layer(1, 4096, 1024, 4, "float16", gated=True), emulated_target())
    assert report.model is not None
    assert report.model.stitched.kernels == 1
    assert "grid barriers 0" in report.verbose()
