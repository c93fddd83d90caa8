# SPDX-License-Identifier: Apache-2.0
"""A contender that is ready to run, and the timing of blocks of its runs in its process."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

GROUP_SECONDS = 0.02
"""Seconds of a timed group of calls on a GPU, without waiting for the device in between."""
MOST_CALLS = 5000


def _nothing() -> None:
    """Do nothing: there is no device to wait for."""


@dataclass
class Ready:
    """A compiled model with its inputs bound.

    Args:
        call: runs the model once. On a GPU it need not wait for the device.
        outputs: results of one run on each draw of the inputs, on the host.
        sync: waits for the device.
        told: data so far, JSON-able: seconds of preparing, versions...
        afterwards: takes measurements that would disturb timing or take long. It is called once, last.
        on_gpu: whether ``call`` starts work on a GPU.
    """

    call: Callable[[], Any]
    outputs: Callable[[], list[list[np.ndarray]]]
    sync: Callable[[], None] = _nothing
    told: dict[str, Any] = field(default_factory=dict)
    afterwards: Callable[[], dict[str, Any]] = dict
    on_gpu: bool = False


@dataclass(frozen=True)
class Block:
    """The times of one block, in seconds a call (on a GPU of groups of calls). ``calls`` were timed."""

    median: float
    best: float
    calls: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-able data."""
        return asdict(self)


def run_block(ready: Ready, seconds: float, one_call: float) -> Block:
    """Run calls for about ``seconds``, after some that do not count (none if one call takes longer).

    The clock is the host's for all contenders: on a GPU around a group of calls, with waits for the device before and
    after.
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
