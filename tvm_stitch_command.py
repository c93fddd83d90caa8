# SPDX-License-Identifier: Apache-2.0
"""The command ``tvm-stitch``, up to the import of TVM. An interrupt during that import ends it like any later one."""

from __future__ import annotations

import sys

EXIT_INTERRUPTED = 130


def main() -> int:
    """Import the command line and run it."""
    try:
        from tvm_stitch.support.interrupts import ended_by_interrupts
    except KeyboardInterrupt:  # only Python is imported here, through which an exception passes as it is
        sys.stderr.write("interrupted\n")
        return EXIT_INTERRUPTED
    with ended_by_interrupts():
        from tvm_stitch.cli import main as run
    return run()


if __name__ == "__main__":
    sys.exit(main())
