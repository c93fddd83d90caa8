# SPDX-License-Identifier: Apache-2.0
"""Symbolic sizes as text: one form for each sum, which its own text says again."""

from __future__ import annotations

import pytest

from tvm_stitch.sums import MOST_TERMS, Sum, added, multiplied, parsed


@pytest.mark.parametrize(
    "text", ["0", "8", "-8", "n", "-n", "n * 4", "n * m * 4 + 16", "n - 1", "-n * 2 + m", "n // 2", "(n // 2) * 4 + n",
             "min(n + 1, 2 * m) * 4 - 3"],
)  # fmt: skip
def test_a_text_says_what_it_was_made_of(text: str) -> None:
    assert str(parsed(text)) == text


@pytest.mark.parametrize(
    ("texts", "total"),
    [
        (["n * 4", "n * 4"], "n * 8"),
        (["n * m", "m * n * 2", "16", "n"], "n * m * 3 + n + 16"),
        (["n - 1", "1"], "n"),
        (["n", "-n"], "0"),
        (["(n // 2) * 4", "n // 2"], "(n // 2) * 5"),
        (["n // 2 * m", "n // 2 * m"], "(n // 2 * m) * 2"),
    ],
)
def test_equal_terms_are_one(texts: list[str], total: str) -> None:
    assert str(added(map(parsed, texts))) == total


def test_differences_and_products() -> None:
    a, b = parsed("n + 2"), parsed("n - 2")
    assert str(added([a, b], -1)) == "4"
    assert str(multiplied(a, b)) == "n * n - 4"


def test_a_product_of_many_terms_is_not_written_out() -> None:
    wide = Sum()
    for i in range(MOST_TERMS // 2 + 1):
        wide.add([f"n{i}"], 1)
    assert multiplied(wide, parsed("n")) is not None and multiplied(wide, parsed("n + 1")) is None
