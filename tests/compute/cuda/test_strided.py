# SPDX-License-Identifier: Apache-2.0
"""Axes become one batch of matrices at equal distances, or are refused."""

from __future__ import annotations

import pytest

from tests.graph.helpers import symbol
from tvm_stitch.compute.cuda.strided import Axis, strided
from tvm_stitch.graph.extent import same
from tvm_stitch.support.failures import Refusal


def test_a_matrix_product() -> None:
    found = strided([Axis(4, 8, 0, 5), Axis(5, 0, 1, 1), Axis(8, 1, 5, 0)])
    assert found.numbers == (4, 5, 8, 1, 8, 5, 5, 0, 0, 0)
    assert (found.mode(), found.mode("", "relu"), found.swapped) == ("", "relu", False)


def test_both_sides_stored_by_columns() -> None:
    found = strided([Axis(4, 1, 0, 5), Axis(5, 0, 8, 1), Axis(8, 4, 1, 0)])
    assert found.numbers == (4, 5, 8, 1, 4, 8, 5, 0, 0, 0)
    assert found.mode("tf32") == "left_transposed right_transposed tf32"


def test_axes_that_continue_each_other_are_one() -> None:
    n = symbol()
    found = strided([Axis(n, 24, 0, 15), Axis(3, 8, 0, 5), Axis(5, 0, 1, 1), Axis(8, 1, 5, 0)])
    assert same(found.rows, n * 3) and found.numbers[1:] == (5, 8, 1, 8, 5, 5, 0, 0, 0)


def test_rows_that_do_not_continue_each_other_are_a_batch() -> None:
    """Heads [s, h, k] read as [h, s, k], with one weight for all."""
    found = strided([Axis(3, 8, 0, 35), Axis(7, 24, 0, 5), Axis(5, 0, 1, 1), Axis(8, 1, 5, 0)])
    assert found.numbers == (7, 5, 8, 3, 24, 5, 5, 8, 0, 35)


def test_a_batch_of_both_sides() -> None:
    found = strided(
        [Axis(2, 96, 120, 60), Axis(3, 32, 40, 20), Axis(4, 8, 0, 5), Axis(5, 0, 1, 1), Axis(8, 1, 5, 0)]
    )
    assert found.numbers == (4, 5, 8, 6, 8, 5, 5, 32, 40, 20)


def test_a_result_by_columns_swaps_the_sides() -> None:
    found = strided([Axis(4, 8, 0, 1), Axis(5, 0, 1, 4), Axis(8, 1, 5, 0)])
    assert found.swapped and found.numbers == (5, 4, 8, 1, 5, 8, 4, 0, 0, 0)
    assert (found.left_transposed, found.right_transposed) == (True, True)


@pytest.mark.parametrize(
    ("axes", "numbers", "transposed"),
    [
        (
            [Axis(1, 0, 0, 0), Axis(5, 0, 1, 1), Axis(8, 1, 5, 0)],
            (1, 5, 8, 1, 8, 5, 5, 0, 0, 0),
            (False, False),
        ),
        (
            [Axis(4, 8, 0, 1), Axis(1, 0, 0, 0), Axis(8, 1, 1, 0)],
            (4, 1, 8, 1, 8, 1, 1, 0, 0, 0),
            (False, False),
        ),
        (
            [Axis(4, 1, 0, 5), Axis(5, 0, 1, 1), Axis(1, 0, 0, 0)],
            (4, 5, 1, 1, 1, 5, 5, 0, 0, 0),
            (False, False),
        ),
        ([Axis(5, 0, 1, 1), Axis(8, 3, 5, 0)], (1, 5, 8, 1, 3, 5, 5, 0, 0, 0), (True, False)),
        ([Axis(8, 1, 1, 0)], (1, 1, 8, 1, 8, 1, 1, 0, 0, 0), (False, False)),
    ],
)
def test_axes_of_one_element_have_no_stride(
    axes: list[Axis], numbers: tuple[int, ...], transposed: tuple
) -> None:
    found = strided(axes)
    assert found.numbers == numbers and (found.left_transposed, found.right_transposed) == transposed


@pytest.mark.parametrize(
    ("axes", "reason"),
    [
        (
            [
                Axis(2, 120, 140, 105),
                Axis(3, 4, 4, 35),
                Axis(5, 12, 0, 7),
                Axis(7, 0, 12, 1),
                Axis(4, 1, 1, 0),
            ],
            "distances of 2 kinds",
        ),
        ([Axis(4, 16, 0, 5), Axis(5, 0, 1, 1), Axis(8, 2, 5, 0)], "its left side are contiguous"),
        ([Axis(4, 8, 0, 5), Axis(5, 0, 2, 1), Axis(8, 1, 10, 0)], "its right side are contiguous"),
        ([Axis(4, 8, 0, 10), Axis(5, 0, 1, 2), Axis(8, 1, 5, 0)], "its result are contiguous"),
        ([Axis(4, 16, 0, 1), Axis(8, 1, 1, 0), Axis(2, 8, 8, 0)], "sums over several axes"),
        ([Axis(4, 1, 0, 5), Axis(5, 0, 1, 1), Axis(8, 0, 5, 0)], "is repeated along the axis"),
        ([Axis(4, 8, 0, 5), Axis(5, 0, 1, 1), Axis(8, 1, 0, 0)], "is repeated along the axis"),
    ],
)
def test_what_one_call_does_not_compute(axes: list[Axis], reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        strided(axes)
