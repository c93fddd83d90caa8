# SPDX-License-Identifier: Apache-2.0
"""A contender that is ready to run, and how blocks of its runs are timed in its process."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

GROUP_SECONDS = 0.02
"""Calls on a GPU are timed in groups of about so long, without waiting for the device in between."""
MOST_CALLS = 5000


def _nothing() -> None:
    """What need not be waited for."""


@dataclass
class Ready:
    """A compiled model with its inputs bound.

    Args:
        call: runs it once; on a GPU it need not wait for the device.
        outputs: what one run on each draw of the inputs gives, on the host.
        sync: waits for the device.
        told: what is known of it so far, plain data: seconds of preparing, versions...
        afterwards: measures what would disturb timing, or takes long: called once, last.
        on_gpu: whether ``call`` hands work to a GPU.
    """

    call: Callable[[], Any]
    outputs: Callable[[], list[list[np.ndarray]]]
    sync: Callable[[], None] = _nothing
    told: dict[str, Any] = field(default_factory=dict)
    afterwards: Callable[[], dict[str, Any]] = dict
    on_gpu: bool = False


@dataclass(frozen=True)
class Block:
    """What one block of calls took, in seconds a call (on a GPU of groups of calls); ``calls`` were timed."""

    median: float
    best: float
    calls: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able data."""
        return asdict(self)


def run_block(ready: Ready, seconds: float, one_call: float) -> Block:
    """Calls for about ``seconds``, behind some that do not count; without these where one call takes longer.

    The clock is the host's for everybody: on a GPU around a group of calls, the device waited for before and after.
    """
    one_call = max(one_call, 1e-9)
    slow = one_call > seconds
    for _ in range(0 if slow else max(2, min(50, int(0.2 * seconds / one_call)))):
        ready.call()
    group = math.ceil(GROUP_SECONDS / one_call) if ready.on_gpu else 1
    samples: list[float] = []
    least = 1 if slow else 3
    ready.sync()
    end = time.perf_counter() + seconds
    while len(samples) * group < MOST_CALLS and (len(samples) < least or time.perf_counter() < end):
        begin = time.perf_counter()
        for _ in range(group):
            ready.call()
        ready.sync()
        samples.append((time.perf_counter() - begin) / group)
    return Block(statistics.median(samples), min(samples), len(samples) * group)
