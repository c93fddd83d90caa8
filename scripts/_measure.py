# SPDX-License-Identifier: Apache-2.0
"""Timing of several contenders in one run: blocks of calls, interleaved, medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from _device_events import Event, device_events

Contender = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Median seconds of one call, the range of its blocks' medians, and kernels launched by a call (GPU)."""

    seconds: float
    least: float
    most: float
    kernels: int | None = None
    names: tuple[str, ...] = ()


def _median_of_blocks(blocks: list[float], kernels: int | None = None, names: tuple[str, ...] = ()) -> Timing:
    return Timing(statistics.median(blocks), min(blocks), max(blocks), kernels, names)


def time_on_cpu(
    contenders: Mapping[str, Contender], blocks: int = 7, seconds_per_block: float = 0.15
) -> dict[str, Timing]:
    """Measure the wall time of every contender.

    Contenders take turns by blocks of calls. Two pools of threads that spin after a call disturb each other. So each
    block begins with a pause and a few calls that do not count.
    """
    calls: dict[str, int] = {}
    for name, contender in contenders.items():
        contender()
        start = time.perf_counter()
        contender()
        calls[name] = max(3, min(2000, int(seconds_per_block / (time.perf_counter() - start + 1e-9))))
    medians: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(blocks):
        for name, contender in contenders.items():
            time.sleep(0.02)
            for _ in range(3):
                contender()
            spent = []
            for _ in range(calls[name]):
                start = time.perf_counter()
                contender()
                spent.append(time.perf_counter() - start)
            medians[name].append(statistics.median(spent))
    return {name: _median_of_blocks(seconds_of) for name, seconds_of in medians.items()}


def _device_activity(contender: Contender, calls: int) -> list[Event]:
    """Return the events on the GPU during ``calls`` calls."""
    import torch

    def run() -> None:
        for _ in range(calls):
            contender()
        torch.cuda.synchronize()

    return device_events(run)


def time_on_gpu(contenders: Mapping[str, Contender], blocks: int = 5, calls: int = 10) -> dict[str, Timing]:
    """Measure the time of every contender's kernels and copies on the GPU by CUPTI, without launch gaps.

    Contenders take turns by blocks of calls. CUPTI may see nothing, or not the same in every call. Then CUDA events
    around a block give the time with its gaps, and ``kernels`` is None.
    """
    import torch

    medians: dict[str, list[float]] = {name: [] for name in contenders}
    kernels: dict[str, int | None] = {}
    names: dict[str, tuple[str, ...]] = {}
    repeat: dict[str, int] = {}
    for name, contender in contenders.items():
        contender()
        torch.cuda.synchronize()
        start = time.perf_counter()
        contender()
        torch.cuda.synchronize()
        # A slow contender (an unscheduled kernel) must not take all of the run's time.
        repeat[name] = calls if time.perf_counter() - start < 0.2 else 1
    for _ in range(blocks):
        for name, contender in contenders.items():
            contender()
            torch.cuda.synchronize()
            seconds_of = _device_activity(contender, repeat[name])
            per_call, rest = divmod(len(seconds_of), repeat[name])
            if per_call == 0 or rest:
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                for _ in range(repeat[name]):
                    contender()
                end.record()
                end.synchronize()
                medians[name].append(begin.elapsed_time(end) * 1e-3 / repeat[name])
                kernels[name], names[name] = None, ()
                continue
            groups = [seconds_of[at : at + per_call] for at in range(0, len(seconds_of), per_call)]
            medians[name].append(statistics.median(sum(spent for _, spent in group) for group in groups))
            names[name] = tuple(event for event, _ in groups[0])
            kernels[name] = sum(not event.startswith(("Memcpy", "Memset")) for event in names[name])
    return {
        name: _median_of_blocks(seconds_of, kernels[name], names[name])
        for name, seconds_of in medians.items()
    }
