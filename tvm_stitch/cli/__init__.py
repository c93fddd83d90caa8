# SPDX-License-Identifier: Apache-2.0
"""The command line: ``tvm-stitch compile|explain|run|bench``, one module for each.

Results go to stdout (with ``--json``, JSON and nothing else), progress and errors to stderr. Exit codes: 0 success,
1 a failure, 2 a usage error, 130 interrupted, 143 terminated.

Nothing here imports TVM before options are read, so that ``--help`` and usage errors take no time.
"""

from ..support.interrupts import EXIT_INTERRUPTED
from .errors import EXIT_FAILURE, EXIT_OK, EXIT_USAGE, UsageError
from .program import main, parser

__all__ = ["EXIT_FAILURE", "EXIT_INTERRUPTED", "EXIT_OK", "EXIT_USAGE", "UsageError", "main", "parser"]
