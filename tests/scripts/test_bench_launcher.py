# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the launcher counts calls, runs two models at once, and compares results."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import bench_launcher

SCRIPT = Path(bench_launcher.__file__)


def test_each_call_is_timed_and_what_comes_before_is_not() -> None:
    events: list[str] = []
    spent = bench_launcher.timed(lambda: events.append("call"), 3, lambda: events.append("before"))
    assert len(spent) == 3
    assert events == ["before", "call"] * 3


def test_two_models_run_at_once() -> None:
    both = threading.Barrier(2, timeout=10)
    assert len(bench_launcher.in_two_threads([both.wait, both.wait], 4)) == 8


def test_an_unknown_scenario() -> None:
    command = [sys.executable, str(SCRIPT), "--scenarios", "asleep"]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 2
