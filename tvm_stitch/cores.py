# SPDX-License-Identifier: Apache-2.0
"""As many threads for TVM as there are cores: of its own it takes half of the processors of any x86 machine."""

from __future__ import annotations

import os
from pathlib import Path

SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def physical_cores(siblings: str = SIBLINGS) -> int:
    """Cores that this process may run on; those of a core that runs several threads count once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    found = set()
    for processor in os.sched_getaffinity(0):
        path = Path(siblings.format(processor))
        found.add(path.read_text(encoding="ascii").strip() if path.is_file() else str(processor))
    return len(found)


def processors() -> int:
    """Processors that this process may run on; threads of one core count each."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_all_cores() -> None:
    """Set ``TVM_NUM_THREADS`` unless it is; to be called before TVM is imported."""
    os.environ.setdefault("TVM_NUM_THREADS", str(physical_cores()))
