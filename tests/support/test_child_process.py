# SPDX-License-Identifier: Apache-2.0
"""A child process computes a function, within limits."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tvm_stitch.support.child_process import ChildCrashed, ChildFailed, in_child

GIB = 1 << 30


def children() -> set[str]:
    """Return the children of this process, with ended ones that nobody has waited for.

    Other tests may have left some.
    """
    return {
        pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()
    }


def test_results_come_back() -> None:
    assert in_child(lambda: None, 5, GIB) is None
    assert in_child(lambda: "é" * 100_000, 5, GIB) == "é" * 100_000
    here = os.getpid()
    assert in_child(lambda: str(os.getppid()), 5, GIB) == str(here)


def test_time_and_memory_are_limited() -> None:
    def forever() -> None:
        while True:
            pass

    with pytest.raises(ChildFailed, match="it takes more than 1 seconds"):
        in_child(forever, 1, GIB)
    with pytest.raises(ChildFailed, match="it takes more than 1 GiB of memory"):
        in_child(lambda: str(len(bytes(2 * GIB))), 5, GIB)


def test_a_child_that_waits_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_stitch.support.child_process.MOST_WAIT", 1)
    start, before = time.monotonic(), children()
    with pytest.raises(ChildFailed, match="too much time"):
        in_child(lambda: time.sleep(60), 1, GIB)
    assert time.monotonic() - start < 20
    assert children() == before


def test_a_crash_and_an_error_are_said() -> None:
    def crash() -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    with pytest.raises(ChildFailed, match="its process ended .SIGSEGV."):
        in_child(crash, 5, GIB)
    with pytest.raises(ChildFailed, match="ValueError: no"):
        in_child(lambda: _raise(ValueError("no")), 5, GIB)


def test_the_last_words_of_a_crash_are_said() -> None:
    def leave() -> None:
        os.write(2, b"first\nERROR: no room\n\n")
        os._exit(1)

    with pytest.raises(ChildCrashed, match="ended .status 1.: ERROR: no room") as caught:
        in_child(leave)
    assert caught.value.said == "ERROR: no room"


def _raise(error: Exception) -> None:
    raise error


def test_an_interrupt_ends_the_child() -> None:
    def handler(_signum: int, _frame: object) -> None:
        raise KeyboardInterrupt

    there, before = children(), signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            in_child(lambda: time.sleep(60), 5, GIB)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert children() == there


def test_no_descriptor_stays_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    in_child(lambda: "a", 5, GIB)
    with pytest.raises(ChildFailed):
        in_child(lambda: _raise(ValueError()), 5, GIB)
    assert len(os.listdir("/proc/self/fd")) == before
