# SPDX-License-Identifier: Apache-2.0
"""Exit codes, and errors as one line."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EXIT_OK, EXIT_FAILURE, EXIT_USAGE, EXIT_TERMINATED = 0, 1, 2, 143

_FULL = "No space left on device"


class UsageError(Exception):
    """An error that the caller can correct. The message says what is wrong and what to do."""


class Failure(RuntimeError):
    """A failure with a complete message. It is neither the caller's mistake nor a fault of the program."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into errors that name it. The system does not name a file that is open.

    Raises:
        UsageError: if it cannot be read.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None


def message_of(error: BaseException) -> str:
    """Return an error in one line, without the traces that TVM puts into its messages."""
    if isinstance(error, (Failure, UsageError)):
        return str(error)
    if _is_full_disk(error):
        filename = getattr(error, "filename", None)
        where = f" of {filename}" if filename else f", where the result goes or in {tempfile.gettempdir()}"
        return f"no space is left on the disk{where}; free some, or give other places with -o and TMPDIR"
    if isinstance(error, MemoryError):
        return f"there is not enough memory here{f': {error}' if str(error) else ''}"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    from ..support.failures import error_text

    return f"{type(error).__name__}: {error_text(error)}"


def _is_full_disk(error: BaseException) -> bool:
    """Return whether a disk is full, for this process or for a linker that it started."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or _FULL in str(error) or os.strerror(errno.ENOSPC) in str(error)
