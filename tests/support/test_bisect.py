# SPDX-License-Identifier: Apache-2.0
"""Finding the units that make a step fail."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tvm_stitch.support.bisect import bisect


@pytest.mark.parametrize("wrong", [set(), {0}, {6}, {2, 3}, {0, 4, 6}, set(range(7))])
def test_exactly_the_culprits_are_found(wrong: set[int]) -> None:
    def attempt(units: Sequence[int]) -> Exception | None:
        assert list(units) == sorted(units)
        found = [u for u in units if u in wrong]
        return ValueError(found[0]) if found else None

    assert {u: err.args for u, err in bisect(range(7), attempt).items()} == {u: (u,) for u in wrong}


def test_of_two_that_fail_only_together_one_is_kept() -> None:
    assert set(bisect([0, 1, 2, 3], lambda u: ValueError() if {1, 2} <= set(u) else None)) == {2}


def test_few_attempts_find_one_of_many() -> None:
    asked = []

    def attempt(units: Sequence[int]) -> Exception | None:
        asked.append(units)
        return ValueError() if 77 in units else None

    assert set(bisect(range(128), attempt)) == {77} and len(asked) <= 16


def test_nothing_to_bisect() -> None:
    assert bisect([], lambda units: ValueError()) == {}
