# SPDX-License-Identifier: Apache-2.0
"""Show the progress of tuning: tasks, trials, the best latency, time spent and the remaining time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


def clock(seconds: float) -> str:
    """Write seconds as hours, minutes and seconds."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


class Progress:
    """Print a line after every round of measurements.

    Args:
        tasks: number of tasks.
        wanted: trials to make in this run.
        before: trials of earlier runs.
        limit: most seconds of this run.
    """

    def __init__(
        self,
        tasks: int,
        wanted: int,
        before: int = 0,
        limit: float = float("inf"),
        say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        self._tasks, self._wanted, self._before, self._limit, self._say = tasks, wanted, before, limit, say
        self._start = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Return the seconds since this object was made."""
        return time.perf_counter() - self._start

    def show(self, tuned: int, done: int, best: float | None) -> None:
        """Print the number of tasks with records, the number of trials, and the best estimate in seconds."""
        rest = self.elapsed / done * max(0, self._wanted - done) if done else float("inf")
        rest = min(rest, max(0.0, self._limit - self.elapsed))
        latency = "-" if best is None else f"{best * 1e3:.3f} ms"
        self._say(
            f"  tasks {tuned}/{self._tasks}, trials {self._before + done}/{self._before + self._wanted}, "
            f"best {latency}, elapsed {clock(self.elapsed)}, "
            f"rest {clock(rest) if rest < float('inf') else 'unknown'}"
        )
