# SPDX-License-Identifier: Apache-2.0
"""SIGTERM ends a command as an interrupt does: temporary files are removed, and child processes end."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived. Everything that lets an interrupt pass lets this pass."""


@contextlib.contextmanager
def terminating() -> Iterator[None]:
    """Raise :class:`Terminated` on SIGTERM in this context, after which child processes of the context end too.

    A program that has its own handler keeps it, and so does one that ignores the signal.
    """
    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    before = _children()
    signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    except Terminated:
        for child in _children() - before:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise(_signum: int, _frame: FrameType | None) -> None:
    raise Terminated


def _children() -> set[int]:
    """Return the processes that this process has started and that still run."""
    found: set[int] = set()
    for tasks in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread has ended
            found.update(map(int, tasks.read_text(encoding="ascii").split()))
    return found
