# SPDX-License-Identifier: Apache-2.0
"""Times of calls by CUDA events around blocks of them, on the current device's stream."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any


def milliseconds(call: Callable[[], Any], calls: int) -> float:
    """Return the milliseconds of one call, the mean of ``calls`` calls in a row."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / calls


def microseconds(contenders: dict[str, Callable[[], Any]], blocks: int, calls: int) -> dict[str, float]:
    """Return medians over ``blocks`` of ``calls`` calls each, in turns, with the L2 flushed before each block."""
    import torch

    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(blocks):
        for name, call in contenders.items():
            call()
            flush.zero_()
            spent[name].append(milliseconds(call, calls) * 1e3)
    return {name: statistics.median(times) for name, times in spent.items()}
