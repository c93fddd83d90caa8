# SPDX-License-Identifier: Apache-2.0
"""Steps that run again without the units that make them fail."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tvm_stitch.support.errors import StitchError
from tvm_stitch.support.resilient import Reasons, UnitsFailed, resilient

UNITS = {number: f"unit {number}" for number in range(6)}


class Step:
    """Fails with some units, or says that others failed, and gives the excluded ones."""

    def __init__(self, wrong: set[int] = frozenset(), known: set[int] = frozenset()):  # type: ignore[assignment]
        self.wrong, self.known, self.runs = wrong, known, 0

    def __call__(self, excluded: Mapping[int, Reasons]) -> dict[int, Reasons]:
        self.runs += 1
        present = set(UNITS) - set(excluded)
        if self.wrong & present:
            raise ValueError(f"wrong: {min(self.wrong & present)}")
        if self.known & present:
            raise UnitsFailed(dict.fromkeys(self.known & present, (("known", "of itself"),)))
        return dict(excluded)


def run(step: Any, **options: Any) -> Any:
    return resilient(step, lambda _: UNITS, strict=False, **options)


def test_a_step_that_works_runs_once() -> None:
    step = Step()
    assert run(step) == {} and step.runs == 1


@pytest.mark.parametrize("wrong", [{0}, {5}, {1, 4}, set(UNITS)])
def test_the_units_that_make_it_fail_are_excluded_with_a_reason(wrong: set[int]) -> None:
    left = run(Step(wrong), because="it does not work")
    assert left == {n: ((f"unit {n}", f"it does not work: ValueError: wrong: {n}"),) for n in wrong}


def test_units_that_the_step_knows_are_excluded_without_trying() -> None:
    step = Step(known={2, 3})
    assert run(step) == {2: (("known", "of itself"),), 3: (("known", "of itself"),)} and step.runs == 2


def test_both_kinds_may_come_after_each_other() -> None:
    assert set(run(Step({1}, {2}), excluded={5: (("five", "asked for"),)})) == {1, 2, 5}


def test_a_step_that_fails_without_any_unit_has_another_result_or_its_error() -> None:
    def step(_excluded: Mapping[int, Reasons]) -> str:
        raise ValueError("always")

    assert run(step, otherwise=lambda err: f"instead: {err}") == "instead: always"
    with pytest.raises(ValueError, match="always"):
        run(step)


def test_a_step_that_names_the_same_units_again_ends() -> None:
    def step(_excluded: Mapping[int, Reasons]) -> None:
        raise UnitsFailed({1: (("one", "again"),)})

    with pytest.raises(UnitsFailed):
        run(step)


def test_strict_raises_for_units_that_are_found() -> None:
    with pytest.raises(StitchError, match="a scope cannot be stitched: ValueError: wrong: 2"):
        resilient(Step({2}), lambda _: UNITS, strict=True)


def test_what_ends_a_program_is_raised() -> None:
    def step(_excluded: Mapping[int, Reasons]) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        run(step)


def test_no_other_code_looks_for_what_fails() -> None:
    """Bisection is in one place, and no loop elsewhere runs a step until it raises nothing."""
    package = Path(__file__).parents[2] / "tvm_stitch"
    found = []
    for path in package.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            bisects = isinstance(node, ast.ImportFrom) and node.module and node.module.endswith("bisect")
            tries = isinstance(node, ast.While) and any(isinstance(each, ast.Try) for each in node.body)
            if bisects and any(alias.name == "bisect" for alias in node.names) or tries:
                found.append(str(path.relative_to(package)))
    assert set(found) == {"support/resilient.py"}
