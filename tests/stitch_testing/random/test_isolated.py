# SPDX-License-Identifier: Apache-2.0
"""Isolated runs: results in order, crashes and hangs as findings, processes renewed on request."""

from __future__ import annotations

import os
import time

import pytest

from stitch_testing.random.isolated import Crash, run_isolated

pytestmark = pytest.mark.usefixtures("children_without_torch")


def square(x: int) -> int:
    return x * x


def crash_on_two(x: int) -> int:
    if x == 2:
        os.abort()
    return x


def hang_on_one(x: int) -> int:
    if x == 1:
        time.sleep(60)
    return x


def own_pid(_: int) -> int:
    return os.getpid()


def test_results_come_in_order_from_several_processes() -> None:
    assert list(run_isolated(square, range(6), jobs=2)) == [0, 1, 4, 9, 16, 25]


def test_a_crash_is_a_finding_and_the_run_goes_on() -> None:
    results = list(run_isolated(crash_on_two, range(5)))
    assert results[:2] == [0, 1] and results[3:] == [3, 4]
    assert isinstance(results[2], Crash) and results[2].item == 2 and "exit code -6" in results[2].reason


def test_a_hang_is_a_finding() -> None:
    results = list(run_isolated(hang_on_one, range(3), timeout=8))
    assert results[0] == 0 and results[2] == 2
    assert results[1] == Crash(1, "no answer in 8 s")


def test_processes_are_kept_unless_renewed() -> None:
    assert len(set(run_isolated(own_pid, range(3)))) == 1
    assert len(set(run_isolated(own_pid, range(3), renew=lambda pid: True))) == 3
