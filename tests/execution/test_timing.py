# SPDX-License-Identifier: Apache-2.0
"""Calls take turns, and what is said of their times is more than noise."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tvm_stitch.execution import timing
from tvm_stitch.execution.timing import Times, comparison, comparison_of_fastest, differ, interleaved


def test_turns_alternate_after_a_call_that_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "PAUSE", 0.0)
    monkeypatch.setattr(timing, "LEAST", 1e-3)
    order: list[str] = []

    def called(name: str, seconds: float) -> Callable[[], None]:
        return lambda: (order.append(name), time.sleep(seconds))[1]

    slow, fast = interleaved([called("slow", 0.02), called("fast", 0.002)], repeats=2)
    assert order == ["slow", "fast", *["slow"] * 2, *["fast"] * 4, *["slow"] * 2]
    assert len(slow.seconds) == 2 and slow.median >= 0.02 > fast.median >= 0.002
    with pytest.raises(ValueError, match="repeats must be at least 1"):
        interleaved([called("fast", 0)], repeats=0)


def test_slow_calls_count_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SLOW", 0.01)
    calls: list[int] = []
    (times,) = interleaved([lambda: (calls.append(1), time.sleep(0.02))], repeats=2)
    assert len(calls) == 1 + 2 and len(times.seconds) == 2


def test_short_calls_are_measured_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MOST_CALLS", 7)
    calls: list[int] = []
    (times,) = interleaved([lambda: calls.append(1)], repeats=3)
    assert len(times.seconds) == 3 and len(calls) == 1 + 3 * (1 + 7)
    assert 0 < times.median < timing.LEAST


def test_the_spread_is_the_middle_half() -> None:
    times = Times((5.0, 1.0, 2.0, 100.0, 3.0))
    assert times.median == 3.0 and times.middle == (2.0, 5.0)
    found = times.to_dict()
    assert found == {"median_ms": 3000.0, "quartiles_ms": [2000.0, 5000.0], "fastest_ms": 1000.0}
    assert Times((2.0,)).middle == (2.0, 2.0)


def test_noise_decides_nothing() -> None:
    ours, near, far = Times((1.0, 1.1, 1.2)), Times((1.1, 1.2, 1.3)), Times((2.0, 2.2, 2.4))
    assert not differ(ours, near) and differ(ours, far) and differ(far, ours)
    assert comparison(ours, near, "stock") == "as fast as stock, within the noise"
    assert comparison(ours, far, "stock") == "2.00 times as fast as stock"
    assert comparison(far, ours, "stock") == "2.00 times as slow as stock"
    unsteady = Times((2.0, 3.0, 9.0))
    assert comparison(ours, unsteady, "stock") == "at least 2.17 times as fast as stock"


def test_fastest_calls_say_which_is_faster() -> None:
    ours, other = Times((1.0, 9.0, 9.0)), Times((2.0, 2.0, 2.0))
    assert comparison_of_fastest(ours, other, "it") == "2.00 times as fast as it, by the fastest calls"
    assert comparison_of_fastest(other, ours, "it") == "2.00 times as slow as it, by the fastest calls"
