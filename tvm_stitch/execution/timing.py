# SPDX-License-Identifier: Apache-2.0
"""Times of calls that take turns, and whether they differ by more than the noise."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

PAUSE = 0.1
"""Seconds before the turn of another one."""

LEAST = 0.05
"""Seconds of calls in a row that are worth a measurement of their own."""

MOST_CALLS = 1000

SLOW = 0.5
"""Seconds of a call to which what was left spinning before makes no difference: it counts itself."""

STEADY = 1.5
"""What the third quartile of times is below, in first quartiles, where their median says enough."""


@dataclass(frozen=True)
class Times:
    """The seconds of several calls of one thing."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Half of the calls took no longer."""
        return statistics.median(self.seconds)

    @property
    def middle(self) -> tuple[float, float]:
        """The first and the third quartile: between them lie half of the calls."""
        if len(self.seconds) == 1:
            return self.seconds[0], self.seconds[0]
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high

    def to_dict(self) -> dict[str, Any]:
        """As milliseconds, for JSON."""
        low, high = self.middle
        return {"median_ms": self.median * 1e3, "quartiles_ms": [low * 1e3, high * 1e3]}


def differ(a: Times, b: Times) -> bool:
    """Do two things take different times, as far as their calls tell: are the middle halves of these apart?"""
    (a_low, a_high), (b_low, b_high) = a.middle, b.middle
    return a_high < b_low or b_high < a_low


def comparison(ours: Times, other: Times, name: str) -> str:
    """How one thing's times compare with another's, in a few words.

    No number where noise decides it. Where calls of one take very different times, the number is the least that the
    middle halves allow.
    """
    if not differ(ours, other):
        return f"as fast as {name}, within the noise"
    slower = ours.median > other.median
    fast, slow = (other, ours) if slower else (ours, other)
    steady = all(high < STEADY * low for low, high in (fast.middle, slow.middle))
    ratio = slow.median / fast.median if steady else slow.middle[0] / fast.middle[1]
    return f"{'' if steady else 'at least '}{ratio:.2f} times as {'slow' if slower else 'fast'} as {name}"


def interleaved(runs: Sequence[Callable[[], Any]], repeats: int = 5) -> list[Times]:
    """Return the times of each callable, all of them called in turn ``repeats`` times after one warm-up.

    Turns alternate in direction, so that none of them always follows the same other one. Before each there is a pause,
    in which threads that another one left spinning go to sleep, and a call that does not count. What takes less
    time than a measurement is worth is called several times, and has the mean of these.

    Raises:
        ValueError: when ``repeats`` is less than 1.
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
