# SPDX-License-Identifier: Apache-2.0
"""Wrong results are found, and rounding is none."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_stitch.cli.contenders.judged import fault_of, times_of
from tvm_stitch.cli.contenders.ready import EXACT, ROUNDED

X = np.random.default_rng(0).standard_normal((8, 16)).astype("float32")


def test_rounding_is_no_fault() -> None:
    assert fault_of([X * (1 + 1e-6)], [X], EXACT) == ""
    assert fault_of([X.astype("float16")], [X], ROUNDED) == ""
    with_nan = np.where(X > 1, np.nan, X)
    assert fault_of([with_nan], [with_nan], EXACT) == ""
    assert fault_of([X > 0, X.argmax(0)], [X > 0, X.argmax(0)], EXACT) == ""


@pytest.mark.parametrize(
    ("outputs", "fault"),
    [
        ([X + 0.1], "result 0 differs by 1.0e-01"),
        ([np.full_like(X, np.nan)], "differs by inf"),
        ([X.T], r"shape \[16, 8\] in the place of \[8, 16\]"),
        ([X, X], "2 results in the place of 1"),
    ],
)
def test_faults_are_told(outputs: list[np.ndarray], fault: str) -> None:
    import re

    assert re.search(fault, fault_of(outputs, [X], EXACT))


def test_other_integers_are_a_fault() -> None:
    best = np.arange(200)
    nearly = best.copy()
    nearly[0] = 5
    assert fault_of([nearly], [best], EXACT) == ""
    assert fault_of([best + 1], [best], EXACT) == "100% of result 0 differ"


def test_turns_alternate() -> None:
    order: list[str] = []

    class Fake:
        def __init__(self, name: str) -> None:
            self.name = name

        def turn(self) -> list[float]:
            order.append(self.name)
            return [float(len(order))]

    found = times_of({"a": Fake("a"), "b": Fake("b")}, 2)  # type: ignore[dict-item]
    assert order == ["a", "b", "b", "a"] and found["a"].seconds == (1.0, 4.0)
