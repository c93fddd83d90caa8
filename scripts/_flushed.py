# SPDX-License-Identifier: Apache-2.0
"""Kernel time on a GPU with the cache flushed before every call, by the CUPTI records of PyTorch's profiler."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from _device_events import Event, device_events
from _grid_jobs import Measured

#: More than the L2 cache of any GPU.
_FLUSH_BYTES = 256 << 20
#: Number of timed calls, by the time of one: (seconds at most, calls).
_CALLS = ((0.02, 20), (0.2, 5), (float("inf"), 1))


def split(events: Sequence[Event], flush: Sequence[str]) -> list[list[Event]]:
    """Split events at the flushes. A flush is events of the names ``flush``, and only flushes have the last name."""
    groups: list[list[Event]] = []
    for event in events:
        if event[0] == flush[-1]:
            if groups and len(flush) > 1:
                del groups[-1][1 - len(flush) :]  # the beginning of this flush
            groups.append([])
        elif groups:
            groups[-1].append(event)
    return groups


def summarize(groups: Sequence[Sequence[Event]]) -> Measured | None:
    """Return the calls' events as a result, None if a call has no event. Counts are those of the most frequent call."""
    if not groups or not all(groups):
        return None
    spent = [sum(seconds for _, seconds in group) for group in groups]
    usual = statistics.mode(tuple(name for name, _ in group) for group in groups)
    copies = sum(name.startswith(("Memcpy", "Memset")) for name in usual)
    return Measured(
        statistics.median(spent), min(spent), max(spent), len(usual) - copies, copies, tuple(usual)
    )


class FlushedTimer:
    """Time calls on the current CUDA device, each with a cache full of other, clean data."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._buffer = torch.zeros(4096, _FLUSH_BYTES // 4 // 4096, device="cuda")
        self._out = torch.empty(4096, device="cuda")
        self._record([self._flush])  # loads the kernel, and CUPTI
        self._mark = [name for name, _ in self._record([self._flush])]
        if not self._mark:
            raise RuntimeError(
                "the profiler recorded nothing on the GPU: CUPTI is not installed, or in use by another profiler"
            )

    def _flush(self) -> None:
        # Reading leaves no lines to write back during the timed call.
        self._torch.amax(self._buffer, dim=1, out=self._out)

    def _record(self, calls: Sequence[Callable[[], object]]) -> list[Event]:
        """Return the events on the GPU during the calls, each of which is waited for."""

        def run() -> None:
            for call in calls:
                call()
                self._torch.cuda.synchronize()  # other libraries use their own streams

        self._torch.cuda.synchronize()
        return device_events(run)

    def __call__(self, run: Callable[[], object]) -> Measured:
        """Time ``run``, which must have been called before."""
        start = time.perf_counter()
        run()
        self._torch.cuda.synchronize()
        once = time.perf_counter() - start
        calls = next(count for limit, count in _CALLS if once <= limit)
        if measured := summarize(split(self._record([self._flush, run] * calls), self._mark)):
            return measured
        spent = []
        for _ in range(calls):
            self._flush()
            self._torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            self._torch.cuda.synchronize()
            spent.append(time.perf_counter() - start)
        return Measured(statistics.median(spent), min(spent), max(spent), None)
