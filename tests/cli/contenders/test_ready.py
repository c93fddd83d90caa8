# SPDX-License-Identifier: Apache-2.0
"""Turns of calls: warmed, and not decided by a few slow calls."""

from __future__ import annotations

import itertools
import statistics
import time

import pytest

from tvm_stitch.cli.contenders import ready


def test_rare_slow_calls_do_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """As calls in which a thread waits for a core: one of eight takes fifty times as long."""
    clock, number = [0.0], itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def call() -> None:
        clock[0] += 0.05 if next(number) % 8 == 0 else 0.001

    assert statistics.median(ready.turn(call)) == pytest.approx(0.001)
    assert next(number) > 2 * ready.LEAST_CALLS, "one phase does not count, one does"


def test_the_first_calls_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, number = [0.0], itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def call() -> None:
        clock[0] += 0.02 if next(number) < ready.LEAST_CALLS else 0.003

    assert max(ready.turn(call)) == pytest.approx(0.003)


def test_a_slow_call_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = [0.0], itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def call() -> None:
        next(calls)
        clock[0] += 2 * ready.SLOW

    assert ready.turn(call) == [2 * ready.SLOW] and next(calls) == 1
