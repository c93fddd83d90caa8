# SPDX-License-Identifier: Apache-2.0
"""Turns of calls: warmed, and not decided by a few slow calls. Calls are those of a user."""

from __future__ import annotations

import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_stitch.cli.contenders import ready
from tvm_stitch.cli.program import parser

torch = pytest.importorskip("torch")


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


def test_restoring_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, restored, called = [0.0], itertools.count(), itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def restore() -> None:
        next(restored)
        clock[0] += 0.01

    def call() -> None:
        next(called)
        clock[0] += 0.002

    assert max(ready.turn(call, restore)) == pytest.approx(0.002)
    assert next(restored) == next(called)


@pytest.fixture
def counter(tmp_path: Path) -> Path:
    """A program that takes a tensor in a list, counts its calls in a buffer, and returns a tensor and a number."""

    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: list[torch.Tensor]) -> Any:
            self.count += 1
            return x[0] * self.count, 7

    path = tmp_path / "counter.pt2"
    torch.export.save(torch.export.export(Counter(), ([torch.ones(3)],)), path)
    return path


@pytest.mark.parametrize("name", ready.NAMES)
def test_a_call_takes_and_returns_what_a_users_call_does(name: str, counter: Path) -> None:
    """Nothing is converted in the time of a call of PyTorch. A compiled model is called with PyTorch's tensors."""
    made = ready.prepare(parser().parse_args(["bench", str(counter)]), name)
    first, count = made.outputs
    assert count.tolist() == [1.0] * 3
    for _ in range(2):  # each call begins with the exported values
        if made.restore is not None:
            made.restore()
        result = made.call()
        assert all(isinstance(each, torch.Tensor) for each in result[:1])
        assert np.allclose(result[0].numpy(), first)
    assert (made.restore is not None) == (name == ready.PEER)
