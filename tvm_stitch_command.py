# SPDX-License-Identifier: Apache-2.0
"""The command ``tvm-stitch``, up to the import of TVM. An interrupt during that import ends it like any later one."""

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
    """End the process at once on an interrupt in this context. A handler installed by the program stays."""
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
    # At once: an exception would leave some module's import, and extension modules replace it.
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
