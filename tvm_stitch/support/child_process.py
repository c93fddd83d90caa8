# SPDX-License-Identifier: Apache-2.0
"""Run a function in a child process with limits, because it may take all memory, run for hours, or crash.

The child is a fork. It shares the parent's data, so nothing is copied and nothing is imported again. A fork of a
process with a gigabyte in memory takes about 10 ms. The child calls the function only, and ends without cleaning up.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time
import warnings
from collections.abc import Callable

from .interrupts import deferred

MOST_WAIT = 20
"""Seconds that a child may take for each second of its computing time, on a machine with other work."""


class ChildFailed(RuntimeError):
    """A function took too much time or memory, raised an exception, or crashed. The message says which."""


class ChildCrashed(ChildFailed):
    """The function ended its process. ``said`` is the last line that it wrote to stderr."""

    def __init__(self, reason: str, said: str):
        super().__init__(f"{reason}: {said}" if said else reason)
        self.said = said


def in_child(
    function: Callable[[], str | None], seconds: int | None = None, memory: int | None = None
) -> str | None:
    """Return the result of a function that a child process computes.

    Args:
        function: takes nothing. The parent does not see what it changes.
        seconds: the most computing time in seconds. None sets no limit.
        memory: the most bytes of memory that the function may take. None sets no limit.

    Raises:
        ChildFailed: if the function exceeds a limit or raises an exception.
        ChildCrashed: if it ends its process.
    """
    said = os.memfd_create("stderr")
    try:
        return _answer(function, seconds, memory, said)
    finally:
        os.close(said)


def _answer(
    function: Callable[[], str | None], seconds: int | None, memory: int | None, said: int
) -> str | None:
    reading, writing = os.pipe()
    child = 0
    try:
        with deferred():
            with warnings.catch_warnings(
                action="ignore", category=DeprecationWarning
            ):  # of forks with threads
                child = os.fork()
            if not child:
                _run(function, seconds, memory, writing, said)
        os.close(writing)
        writing = -1
        answer = _read(reading, seconds and time.monotonic() + MOST_WAIT * seconds)
        _, status = os.waitpid(child, 0)
        child = 0
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    if not answer:
        raise _failure(status, seconds, memory, _last_line(said))
    result, error = json.loads(answer)
    if error is not None:
        raise ChildFailed(_shown(memory) if error == "MemoryError" else error)
    return result if result is None else str(result)


def _run(
    function: Callable[[], str | None], seconds: int | None, memory: int | None, writing: int, said: int
) -> None:
    """Compute the function's result in the child, write it, and end the child."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(said, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if seconds is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        if memory is not None:
            most = _address_space() + memory
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))
        answer: tuple[str | None, str | None]
        try:
            answer = (function(), None)
        except MemoryError:
            answer = (None, "MemoryError")
        except Exception as error:  # every one is the function's result here
            text = f"{type(error).__name__}: {error}"
            answer = (None, "MemoryError" if "bad_alloc" in text else text)
        with os.fdopen(writing, "w", encoding="utf-8") as file:
            file.write(json.dumps(answer))
    finally:
        os._exit(0)


def _address_space() -> int:
    """Return the bytes of this process's address space."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _read(file: int, end: float | None) -> bytes:
    """Return all bytes that the child writes until a moment of ``time.monotonic``."""
    received = b""
    while end is None or time.monotonic() < end:
        if select.select([file], [], [], None if end is None else max(0, end - time.monotonic()))[0]:
            piece = os.read(file, 1 << 16)
            if not piece:
                return received
            received += piece
    raise ChildFailed("it takes too much time")


def _last_line(file: int) -> str:
    end = os.lseek(file, 0, os.SEEK_END)
    text = os.pread(file, 4096, max(0, end - 4096)).decode(errors="replace")
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _failure(status: int, seconds: int | None, memory: int | None, said: str) -> ChildFailed:
    """Return the error of a child that ended without an answer."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if seconds is not None and number in (signal.SIGXCPU, signal.SIGKILL):
        return ChildFailed(f"it takes more than {seconds} seconds")
    if memory is not None and number == signal.SIGABRT:
        return ChildFailed(_shown(memory))  # C++ ends so if it cannot allocate
    name = signal.Signals(number).name if number else f"status {os.waitstatus_to_exitcode(status)}"
    return ChildCrashed(f"its process ended ({name})", said)


def _shown(memory: int | None) -> str:
    if memory is None:
        return "there is not enough memory"
    return f"it takes more than {memory / (1 << 30):.3g} GiB of memory"
