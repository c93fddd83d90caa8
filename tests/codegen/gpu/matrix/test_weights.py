# SPDX-License-Identifier: Apache-2.0
"""Lanes load the words, scales and zero points of their rows, for all forms of weights, groups and numbers of rows."""

from __future__ import annotations

import pytest

from tests.codegen.gpu.matrix.checked import check
from tests.plan.rows.packed import FORMS


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FORMS)
def test_all_forms_of_weights(name: str, dtype: str) -> None:
    check(name, 1, 36, 512, 64, dtype)


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
