# SPDX-License-Identifier: Apache-2.0
"""Times of calls that alternate, and whether they differ by more than the noise."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

PAUSE = 0.1
"""Seconds of pause before another callable's turn."""

LEAST = 0.05
"""Least seconds of consecutive calls for one measurement."""

MOST_CALLS = 1000

SLOW = 0.5
"""Seconds of a call from which on threads that still spin make no difference. Its first call counts."""

STEADY = 1.5
"""Greatest ratio of the third to the first quartile at which the median is reported."""


@dataclass(frozen=True)
class Times:
    """The seconds of several calls of one callable."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Half of the calls took no longer."""
        return statistics.median(self.seconds)

    @property
    def middle(self) -> tuple[float, float]:
        """The first and the third quartile. Half of the calls lie between them."""
        if len(self.seconds) == 1:
            return self.seconds[0], self.seconds[0]
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high

    @property
    def fastest(self) -> float:
        """The least time of a call. Other work on the machine disturbs it least."""
        return min(self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return the times in milliseconds, for JSON."""
        low, high = self.middle
        return {
            "median_ms": self.median * 1e3,
            "quartiles_ms": [low * 1e3, high * 1e3],
            "fastest_ms": self.fastest * 1e3,
        }


def differ(a: Times, b: Times) -> bool:
    """Return whether two callables take different times: the middle halves of their calls do not overlap."""
    (a_low, a_high), (b_low, b_high) = a.middle, b.middle
    return a_high < b_low or b_high < a_low


def comparison(ours: Times, other: Times, name: str) -> str:
    """Return a comparison of two callables' times in a few words.

    There is no number if noise decides it. If the calls of one vary widely, the number is the least that the middle
    halves allow.
    """
    if not differ(ours, other):
        return f"as fast as {name}, within the noise"
    slower = ours.median > other.median
    fast, slow = (other, ours) if slower else (ours, other)
    steady = all(high < STEADY * low for low, high in (fast.middle, slow.middle))
    ratio = slow.median / fast.median if steady else slow.middle[0] / fast.middle[1]
    return f"{'' if steady else 'at least '}{ratio:.2f} times as {'slow' if slower else 'fast'} as {name}"


def comparison_of_fastest(ours: Times, other: Times, name: str) -> str:
    """Return a comparison of two callables' fastest calls in a few words, for a machine with other work.

    There the threads of one call share a core for some turns. Their medians say which of two callables had such turns.
    """
    slower = ours.fastest > other.fastest
    fast, slow = (other, ours) if slower else (ours, other)
    return f"{slow.fastest / fast.fastest:.2f} times as {'slow' if slower else 'fast'} as {name}, by the fastest calls"


def interleaved(runs: Sequence[Callable[[], Any]], repeats: int = 5) -> list[Times]:
    """Return the times of each callable. All of them are called alternately, ``repeats`` times after one warm-up.

    The order of turns alternates, so that no callable always follows the same other one. Before each turn there is
    a pause, in which threads left spinning go to sleep, and a call that does not count. A callable that takes less
    time than a measurement needs is called several times, and the mean counts.

    Raises:
        ValueError: if ``repeats`` is less than 1.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    times: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    for turn in range(repeats):
        order = range(len(runs)) if turn % 2 == 0 else reversed(range(len(runs)))
        for index in order:
            if len(runs) > 1:
                time.sleep(PAUSE)
            once = _seconds(runs[index], 1)
            if once >= SLOW:
                times[index].append(once)
                continue
            calls = 1 if once >= LEAST else min(round(LEAST / max(once, 1e-7)), MOST_CALLS)
            times[index].append(_seconds(runs[index], calls) / calls)
    return [Times(tuple(samples)) for samples in times]


def _seconds(run: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return time.perf_counter() - start
