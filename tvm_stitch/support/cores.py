# SPDX-License-Identifier: Apache-2.0
"""Set TVM's number of threads to the number of cores. On x86 TVM's default is half of the processors.

With one thread TVM also binds the caller to one processor, and with it all threads that the caller makes later, such as
PyTorch's.

Also limit how long PyTorch's OpenMP threads spin, so that they do not occupy the core of the thread they wait for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "TVM_NUM_THREADS"
MOST_THREADS = 65536
SPINS, POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
SOON = 1000
"""Checks that a waiting OpenMP thread makes before it sleeps.

GNU's OpenMP takes this value if there are more threads than processors, else 300,000. Measured with an encoder of
PyTorch on two cores, with another process running: 36 to 44 ms (medians of 40 calls in three processes). By default
it took 36 to 660 ms. On idle cores both took 15 to 20 ms. Threads that sleep at once (``OMP_WAIT_POLICY=passive``)
took 23 to 28 ms.
"""
SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


QUOTA = "/sys/fs/cgroup/cpu.max"
QUOTAS = ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def processors_allowed(quota: str = QUOTA, quotas: tuple[str, str] = QUOTAS) -> int | None:
    """Return the number of processors that the process's control group allows, rounded up, or None for any number.

    Args:
        quota: the file of version 2 of control groups, with microseconds of processor time and of a period.
        quotas: the two files of version 1.
    """
    texts = [Path(quota)] if Path(quota).is_file() else [Path(each) for each in quotas]
    try:
        time, period = " ".join(each.read_text(encoding="ascii") for each in texts).split()[:2]
        allowed = -(-int(time) // int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no such files, or "max"
        return None
    return allowed if allowed > 0 else None


def physical_cores(siblings: str = SIBLINGS) -> int:
    """Return the number of cores that this process may run on. Hardware threads of one core count once.

    The limit of a container counts too.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = set()
    for processor in os.sched_getaffinity(0):
        path = Path(siblings.format(processor))
        cores.add(path.read_text(encoding="ascii").strip() if path.is_file() else str(processor))
    allowed = processors_allowed()
    return len(cores) if allowed is None else min(len(cores), allowed)


def processors() -> int:
    """Return the number of processors that this process may run on. Hardware threads of one core count separately."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """Return the number of TVM's threads: the value of ``TVM_NUM_THREADS``, else this machine's processors.

    TVM parses a number at the variable's beginning, and runs one thread if there is none, or none above 0.
    """
    setting = os.environ.get(VARIABLE)
    if setting is None:
        return os.cpu_count() or 1
    number = re.match(r"\s*[+-]?\d+", setting, re.ASCII)
    return max(int(number[0]), 1) if number else 1


def use_all_cores() -> None:
    """Set ``TVM_NUM_THREADS`` if it is not set. Call this before TVM makes its threads, in its first parallel call.

    Raises:
        ValueError: if it is set to something else than a number of threads. TVM would silently run one thread.
    """
    setting = os.environ.get(VARIABLE, "").strip()
    if not setting:
        os.environ[VARIABLE] = str(physical_cores())
    elif not (setting.isascii() and setting.isdecimal() and 1 <= int(setting) <= MOST_THREADS):
        raise ValueError(f"{VARIABLE} must be a number of threads, 1 to {MOST_THREADS}, not {setting!r}")


_CHOSEN: list[str] = []
"""The variables that :func:`sleep_soon` has set."""


def sleep_soon() -> None:
    """Set how long OpenMP's threads spin, if that is not set. Call this before PyTorch is imported.

    On a busy machine a spinning thread keeps the thread that it waits for from running. A call then takes many
    times as long, and code that is timed at the same time has fewer cores.
    """
    if not {SPINS, POLICY} & set(os.environ):
        os.environ[SPINS] = str(SOON)
        _CHOSEN.append(SPINS)


def without_our_choice(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that :func:`sleep_soon` set, for a process that runs alone."""
    return {name: value for name, value in environment.items() if name not in _CHOSEN}
