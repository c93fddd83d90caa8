# SPDX-License-Identifier: Apache-2.0
"""All reasons for which two operators are, or are not, one kernel."""

from __future__ import annotations

import dataclasses

import pytest

from tests.report.samples import ACTIONABLE, sample
from tvm_stitch.report.why import why


def test_one_kernel() -> None:
    assert why(sample(), "head.norm", "l6") == "head.norm and l6 are in one kernel: first"


@pytest.mark.parametrize(
    ("a", "b"),
    [("layer1.norm", "argmax"), ("argmax", "n4"), ("layer_norm", "argmax a5"), ("nn.layer_norm", "argmax")],
)
def test_neighbours_in_either_order(a: str, b: str) -> None:
    answer = why(sample(), a, b)
    assert answer.startswith("norm | argmax") and ACTIONABLE in answer
    assert "What to do: Fix the dimensions" in answer


def test_no_neighbours() -> None:
    answer = why(sample(), "head.norm", "layer0.norm")
    assert answer == "first and norm are not neighbours: between them: product"


def test_no_dependency() -> None:
    apart = dataclasses.replace(sample(), edges=())
    assert "do not depend on each other" in why(apart, "layer0.norm", "argmax")


def test_views_are_no_kernels() -> None:
    assert why(sample(), "layer1.norm", "v7").startswith("v7 is no kernel")


def test_the_case_of_letters_decides_only_between_names() -> None:
    assert why(sample(), "Layer0.NORM", "ARGMAX") == why(sample(), "layer0.norm", "argmax").replace(
        "layer0.norm", "Layer0.NORM"
    )


def test_unknown_names_are_errors_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match="nothing is called 'layer0.nrom'; did you mean layer0.norm"):
        why(sample(), "layer0.nrom", "argmax")
    with pytest.raises(ValueError, match="nothing is called 'zzz'$"):
        why(sample(), "argmax", "zzz")
