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


def test_threads_that_spin_behind_a_call_are_counted() -> None:
    ended = threading.Event()
    spinning = threading.Thread(target=lambda: [None for _ in iter(ended.is_set, True)])
    spinning.start()
    try:
        assert bench_launcher.busy_cores(lambda: None, blocks=3, seconds=0.02) > 0.1
    finally:
        ended.set()
        spinning.join()
    assert bench_launcher.busy_cores(lambda: None, blocks=3, seconds=0.02) < 0.5


def test_what_runs_before_calls(tmp_path: Path) -> None:
    assert bench_launcher.before_calls("busy", tmp_path) is None
    assert set(bench_launcher.SCENARIOS) > {"onnxruntime-asleep", "pytorch-asleep"}
