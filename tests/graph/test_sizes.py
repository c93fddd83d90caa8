# SPDX-License-Identifier: Apache-2.0
"""Symbolic sizes: the arithmetic of numbers, printed in one form for each sum."""

from __future__ import annotations

import json

import pytest

from tvm_stitch.graph.polynomial import MOST_TERMS
from tvm_stitch.graph.sizes import Size, named, static_size, with_sizes_as_text

N, M = named("n"), named("m")
HALF = named("n // 2")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (N, "n"),
        (-N, "-n"),
        (N * 4, "n * 4"),
        (16 + 4 * N * M, "n * m * 4 + 16"),
        (N - 1, "n - 1"),
        (1 - N, "-n + 1"),
        (M - N * 2, "m - n * 2"),
        (HALF, "n // 2"),
        (HALF * 4 + N, "(n // 2) * 4 + n"),
        (named("min(n + 1, 2 * m)") * 4 - 3, "min(n + 1, 2 * m) * 4 - 3"),
    ],
)
def test_sizes_are_printed_as_sums_of_products(size: Size, text: str) -> None:
    assert str(size) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (N * 4 + N * 4, "n * 8"),
        (sum([N * M, M * N * 2, 16, N]), "n * m * 3 + n + 16"),
        (M * N + N * M, "m * n * 2"),
        (HALF * 4 + HALF, "(n // 2) * 5"),
        ((N + 2) * (N - 2), "n * n - 4"),
        (N * (1 + HALF), "n + n * (n // 2)"),
        ((M + N) * (N + M), "m * n * 2 + m * m + n * n"),
    ],
)
def test_equal_terms_are_one(size: Size, text: str) -> None:
    assert str(size) == text


def test_constants_are_ints() -> None:
    for size, number in ((N - 1 - N, -1), (N * 0, 0), ((N + 2) - (N - 2), 4)):
        assert type(size) is int and size == number
    assert static_size(N - N + 3) == 3
    with pytest.raises(AssertionError, match="n \\* 2 is symbolic"):
        static_size(N * 2)


def test_equal_sizes_are_equal_however_they_were_written() -> None:
    assert N * M + 2 == 2 + M * N and len({N * M + 2, 2 + M * N, N + M - N + 2}) == 2
    assert N != M and N * M != N * N and N != "n" and N + 1 != N


def test_a_product_of_many_terms_is_not_written_out() -> None:
    wide = sum(named(f"n{i}") for i in range(MOST_TERMS // 2 + 1))
    assert str(wide * N).count("+") == MOST_TERMS // 2
    assert str(wide * (N + 1)) == f"({wide}) * (n + 1)"


def test_data_have_sizes_as_text() -> None:
    data = {"bytes": N * 4, "of": (3, [M, None]), "name": "n"}
    assert json.loads(json.dumps(with_sizes_as_text(data))) == {
        "bytes": "n * 4",
        "of": [3, ["m", None]],
        "name": "n",
    }
