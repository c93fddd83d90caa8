# SPDX-License-Identifier: Apache-2.0
"""Products on matrix units have the numbers of float64, for all forms of weights and numbers of rows."""

from __future__ import annotations

import numpy as np
import pytest

from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import emulated
from tests.plan.rows.packed import FORMS, drawn, product
from tests.relax.few_rows import models
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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FORMS)
def test_all_forms_of_weights(name: str, dtype: str) -> None:
    check(name, 1, 36, 512, 64, dtype)


@pytest.mark.parametrize("rows", [2, 3, 5, 8, 16])
def test_up_to_sixteen_rows(rows: int) -> None:
    check("4 bits of 32", rows, 20, 256, 32, "bfloat16")


@pytest.mark.parametrize(
    ("group", "text"),
    [
        (8, "in 4 groups"),  # a lane loads 4 bytes
        (16, "in 4 groups"),
        (32, "in 4 groups"),
        (64, "in 2 groups"),
        (128, "in 1 groups"),
        (512, "in 1 groups"),
        (1536, "in 1 groups"),  # a scale for a row
    ],
)
def test_groups_of_any_size(group: int, text: str) -> None:
    assert text in check("4 bits of 32", 3, 8, 1536, group, "float16")


@pytest.mark.parametrize("columns", [3, 6, 30, 131])
def test_odd_numbers_of_rows_of_weights(columns: int) -> None:
    check("4 bits of 32", 2, columns, 256, 32, "float16")


@pytest.mark.parametrize("inner", [384, 1408, 11008])
def test_columns_that_warps_do_not_divide(inner: int) -> None:
    check("4 bits of 32", 1, 12, inner, 32, "float16")


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


def test_an_infinite_factor_stays_in_its_row() -> None:
    case = FORMS["4 bits of 32"], 2, 8, 384, 32, "float16", ""
    arrays, wanted = drawn(*case)
    arrays[0][0, 3] = np.inf
    (found,) = emulated(product(*case), *arrays)
    assert not np.isfinite(found[0]).any()
    assert np.abs(found[1].astype("float64") - wanted[1]).max() <= 1e-3 * np.abs(wanted).max()
