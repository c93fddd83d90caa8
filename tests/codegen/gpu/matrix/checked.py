# SPDX-License-Identifier: Apache-2.0
"""Products on matrix units compared with float64."""

from __future__ import annotations

import numpy as np

from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import emulated
from tests.plan.rows.packed import FORMS, drawn, product
from tvm_stitch import explain

TOLERANCE = {"float16": 8e-4, "bfloat16": 6e-3}
"""Most error, relative to the largest element of a result: a little more than that of its rounding."""


def check(name: str, rows: int, columns: int, inner: int, group: int, dtype: str, scale: str = "") -> str:
    """Compare a product with float64. Return how its sums are taken."""
    case = FORMS[name], rows, columns, inner, group, dtype, scale
    arrays, wanted = drawn(*case)
    mod = product(*case)
    (found,) = emulated(mod, *arrays)
    assert np.abs(found.astype("float64") - wanted).max() <= TOLERANCE[dtype] * np.abs(wanted).max()
    text = explain(mod, emulated_target()).verbose()
    assert "by matrix units" in text
    return text
