# SPDX-License-Identifier: Apache-2.0
"""Fields of words are recognised by what an expression does to bits, and other weights are left to lanes."""

from __future__ import annotations

import pytest

from stitch_testing.random.graphs import emulated_target
from tests.plan.rows.packed import FORMS, OTHERS, Form, product
from tvm_stitch import explain


def sums(form: Form, dtype: str = "float16", scale: str = "", group: int = 32) -> str:
    """Return how the report says that the sums of a product are taken."""
    return sums_of_text(explain(product(form, 1, 16, 256, group, dtype, scale), emulated_target()).verbose())


def sums_of_text(text: str) -> str:
    """Return the line of a report on the sums of a product."""
    (line,) = [line for line in text.splitlines() if "sums by " in line]
    return line[line.index("sums by ") :]


@pytest.mark.parametrize("name", FORMS)
def test_fields_are_recognised(name: str) -> None:
    assert f"matrix units, {FORMS[name].bits}-bit weights" in sums(FORMS[name])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a choice of two", "an integer of a weight is computed from 2 elements"),
        ("odd columns last", "an integer of a weight is no field of a word"),
    ],
)
def test_other_integers_are_left_to_lanes(name: str, reason: str) -> None:
    assert sums(OTHERS[name]) == f"sums by lanes: {reason}"


def test_a_zero_point_that_bfloat16_does_not_hold_is_refused() -> None:
    far = Form(4, "uint32", FORMS["4 bits of 32"].integer, 300)
    assert sums(far) == "sums by lanes: 4-bit integers less 300 exceed 256"


def test_weights_that_the_model_rounds_keep_their_rounding() -> None:
    reason = "a weight is rounded before it is multiplied"
    assert sums(FORMS["4 bits of 32"], scale="float32") == f"sums by lanes: {reason}"


def test_factors_of_float32_are_left_to_lanes() -> None:
    assert sums(FORMS["4 bits of 32"], "float32") == "sums by lanes: factors of float32"


def test_groups_that_are_shorter_than_a_load_are_left_to_lanes() -> None:
    assert "in groups of 4 are no whole vectors" in sums(FORMS["4 bits of 32"], group=4)
