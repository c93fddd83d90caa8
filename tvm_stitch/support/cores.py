# SPDX-License-Identifier: Apache-2.0
"""As many threads for TVM as there are cores: of its own it takes half of the processors of any x86 machine.

And threads of OpenMP, which are PyTorch's, that wait for each other without taking a core from the one they wait for.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

VARIABLE = "TVM_NUM_THREADS"
MOST_THREADS = 65536
SPINS, POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
SOON = 1000
"""How often a thread of OpenMP looks whether the others are there before it sleeps: what GNU's OpenMP itself takes
where it has more threads than processors, else 300,000. On two cores beside another process an encoder of PyTorch's
took 36 to 44 ms with it (medians of 40 calls in three processes), by default 36 to 660. On idle cores it took 15 to
18 ms either way, and 23 to 28 with threads that sleep at once (``OMP_WAIT_POLICY=passive``)."""
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


def threads() -> int:
    """Return the threads that TVM runs: what ``TVM_NUM_THREADS`` says, else this machine's processors.

    TVM reads a number off the variable's beginning, and runs one thread where there is none, or none above 0.
    """
    said = os.environ.get(VARIABLE)
    if said is None:
        return os.cpu_count() or 1
    number = re.match(r"\s*[+-]?\d+", said, re.ASCII)
    return max(int(number[0]), 1) if number else 1


def use_all_cores() -> None:
    """Set ``TVM_NUM_THREADS`` unless it is; to be called before TVM is imported.

    Raises:
        ValueError: where it is no number of threads: TVM would run one, and say nothing.
    """
    said = os.environ.get(VARIABLE, "").strip()
    if not said:
        os.environ[VARIABLE] = str(physical_cores())
    elif not (said.isascii() and said.isdecimal() and 1 <= int(said) <= MOST_THREADS):
        raise ValueError(f"{VARIABLE} must be a number of threads, 1 to {MOST_THREADS}, not {said!r}")


def sleep_soon() -> None:
    """Set how long OpenMP's threads spin, unless that is said; to be called before PyTorch is imported.

    A thread that spins on a busy machine keeps the one that it waits for from running: a call takes many times as long,
    and what is timed beside it has fewer cores.
    """
    if not {SPINS, POLICY} & set(os.environ):
        os.environ[SPINS] = str(SOON)
