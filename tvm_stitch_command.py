# SPDX-License-Identifier: Apache-2.0
"""The command ``tvm-stitch``, up to where TVM is imported: an interrupt during that ends it as any later one does."""

from __future__ import annotations

import os
import signal
import sys

EXIT_INTERRUPTED = 130


def main() -> int:
    """Import the command line, which takes seconds, and run it."""
    before = signal.signal(signal.SIGINT, _end)
    from tvm_stitch.cli import main as run

    signal.signal(signal.SIGINT, before)
    return run()


def _end(_signum: int, _frame: object) -> None:
    # At once: an exception would come out of some module's import, and extension modules make others of it.
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
