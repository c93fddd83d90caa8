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
    """A function took too much time or memory, or its process crashed. The message says which."""


def in_child(function: Callable[[], str | None], seconds: int, memory: int) -> str | None:
    """Return the result of a function that a child process computes.

    Args:
        function: takes nothing. The parent does not see what it changes.
        seconds: the most computing time in seconds.
        memory: the most bytes of memory that the function may take.

    Raises:
        ChildFailed: if the function exceeds a limit, raises an exception or crashes.
    """
    reading, writing = os.pipe()
    child = 0
    try:
        with deferred():
            with warnings.catch_warnings(
                action="ignore", category=DeprecationWarning
            ):  # of forks with threads
                child = os.fork()
            if not child:
                _run(function, seconds, memory, writing)
        os.close(writing)
        writing = -1
        answer = _read(reading, time.monotonic() + MOST_WAIT * seconds)
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
        raise ChildFailed(_reason(status, seconds, memory))
    result, error = json.loads(answer)
    if error is not None:
        raise ChildFailed(_shown(memory) if error == "MemoryError" else error)
    return result if result is None else str(result)


def _run(function: Callable[[], str | None], seconds: int, memory: int, writing: int) -> None:
    """Compute the function's result in the child, write it, and end the child."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
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


def _read(file: int, end: float) -> bytes:
    """Return all bytes that the child writes until a moment of ``time.monotonic``."""
    found = b""
    while (left := end - time.monotonic()) > 0:
        if select.select([file], [], [], left)[0]:
            piece = os.read(file, 1 << 16)
            if not piece:
                return found
            found += piece
    raise ChildFailed("it takes too much time")


def _reason(status: int, seconds: int, memory: int) -> str:
    """Return the reason why a child ended without an answer."""
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        return f"it takes more than {seconds} seconds"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT:
        return _shown(memory)  # C++ ends so where it cannot allocate
    name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "no signal"
    return f"the process that looked at it crashed ({name})"


def _shown(memory: int) -> str:
    return f"it takes more than {memory / (1 << 30):.3g} GiB of memory"
