# SPDX-License-Identifier: Apache-2.0
"""The command ``tvm-stitch``, up to where TVM is imported: an interrupt during that ends it as any later one does."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

EXIT_INTERRUPTED = 130


def main() -> int:
    """Import the command line and run it."""
    with ended_by_interrupts():
        from tvm_stitch.cli import main as run
    return run()


@contextlib.contextmanager
def ended_by_interrupts() -> Iterator[None]:
    """While this lasts, an interrupt ends the process at once; a handler of the program's own stays as it is."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(_signum: int, _frame: object) -> None:
    # At once: an exception would come out of some module's import, and extension modules make others of it.
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
