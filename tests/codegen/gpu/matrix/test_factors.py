# SPDX-License-Identifier: Apache-2.0
"""Factors of any number of rows and columns lie in shared memory as lanes multiply them, with zeros behind."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.gpu.matrix.checked import check
from tests.graph.helpers import emulated
from tests.plan.rows.packed import FORMS, drawn, product


@pytest.mark.parametrize("rows", [2, 3, 5, 8, 16])
def test_up_to_sixteen_rows(rows: int) -> None:
    check("4 bits of 32", rows, 20, 256, 32, "bfloat16")


@pytest.mark.parametrize("inner", [384, 1408, 11008])
def test_columns_that_warps_do_not_divide(inner: int) -> None:
    check("4 bits of 32", 1, 12, inner, 32, "float16")


def test_an_infinite_factor_stays_in_its_row() -> None:
    case = FORMS["4 bits of 32"], 2, 8, 384, 32, "float16", ""
    arrays, wanted = drawn(*case)
    arrays[0][0, 3] = np.inf
    (found,) = emulated(product(*case), *arrays)
    assert not np.isfinite(found[0]).any()
    assert np.abs(found[1].astype("float64") - wanted[1]).max() <= 1e-3 * np.abs(wanted).max()
