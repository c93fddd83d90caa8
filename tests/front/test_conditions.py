# SPDX-License-Identifier: Apache-2.0
"""Conditions on shapes: they are checked, and nothing else is run."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_stitch.front.conditions import check_conditions

NAMES, TENSORS = ["x", "y"], [np.zeros((4, 3)), np.zeros((9, 2))]


@pytest.mark.parametrize(
    "text", ["x.shape[0] <= y.shape[0]", "2 * x.shape[0] + 1 == y.shape[0]", "y.shape[0] % 2 > 0"]
)
def test_conditions_that_hold(text: str) -> None:
    check_conditions([text], NAMES, TENSORS)


def test_a_condition_that_does_not_hold() -> None:
    with pytest.raises(
        ValueError, match=r"needs x.shape\[1\] < y.shape\[1\], but x has the shape \[4, 3\], y has"
    ):
        check_conditions(["x.shape[0] < y.shape[0]", "x.shape[1] < y.shape[1]"], NAMES, TENSORS)


@pytest.mark.parametrize(
    "text",
    [
        "print(1)",
        "x.data == 1",
        "x.shape[y] == 1",
        "9 ** 9 ** 9 > 1",
        "1 << 99 > 1",
        "x",
        "x.shape[0] ==",
        "(lambda: 1)() == 1",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    """They are read from a file."""
    with pytest.raises(ValueError, match="is no condition on shapes"):
        check_conditions([text], NAMES, TENSORS)


@pytest.mark.parametrize("text", ["x.shape[7] == 1", "z.shape[0] == 1", "x.shape[0] @ 2 == 1", "1 in 2"])
def test_conditions_that_no_shape_has_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="is no condition"):
        check_conditions([text], ["x"], [np.zeros((2, 3))])


def test_a_quotient_by_an_empty_extent_does_not_hold() -> None:
    with pytest.raises(ValueError, match="the model needs"):
        check_conditions(["x.shape[0] % x.shape[1] == 0"], ["x"], [np.zeros((2, 0))])
