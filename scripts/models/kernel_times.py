# SPDX-License-Identifier: Apache-2.0
"""The time of a contender's call in each kernel of a GPU, by the CUPTI records of PyTorch's profiler."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from _device_events import device_events

from .ready import Ready

CALLS = 5
"""Number of profiled calls, whose mean is reported."""
MOST_KERNELS = 200
"""Most kernels that are listed one by one. All count in the sums."""

_OF_LIBRARIES = re.compile(
    r"gemm|gemv|nvjet|cutlass|xmma|cudnn|conv|grad_engine|winograd|fmha|flash|attention|splitk|triton_tem_",
    re.I,
)
_OF_INDUCTOR = re.compile(r"triton_(poi|red|per)_")
"""Its kernels are called after operators, convolutions that are computed elsewhere among them."""


def is_memory_intensive(name: str) -> bool:
    """Return whether a kernel of PyTorch, Inductor or a library is neither product, convolution nor attention."""
    return bool(_OF_INDUCTOR.match(name)) or not _OF_LIBRARIES.search(name)


def kernel_times(ready: Ready, memory_intensive: Callable[[str], bool]) -> dict[str, Any]:
    """Return the seconds of a call in kernels, and in memory-intensive ones. Empty if CUPTI records nothing.

    Copies of the device's memory count as memory-intensive. Gaps between kernels count nowhere.
    """

    def run() -> None:
        for _ in range(CALLS):
            ready.call()
        ready.sync()

    ready.call()
    ready.sync()
    spent: dict[str, list[float]] = {}
    for name, seconds in device_events(run):
        spent.setdefault(name, []).append(seconds)
    if not spent:
        return {}
    by_name = [(name, len(found) / CALLS, sum(found) / CALLS) for name, found in spent.items()]
    by_name.sort(key=lambda kernel: -kernel[2])
    return {
        "kernels_s": sum(seconds for _, _, seconds in by_name),
        "memory_intensive_s": sum(seconds for name, _, seconds in by_name if memory_intensive(name)),
        "by_kernel": [
            {"name": name, "calls": calls, "seconds": seconds}
            for name, calls, seconds in by_name[:MOST_KERNELS]
        ],
    }
