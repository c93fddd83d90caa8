# SPDX-License-Identifier: Apache-2.0
"""Suppress the native code's output to stderr if it tells users nothing."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def without_native_stderr() -> Iterator[None]:
    """Drop all output to the process's stderr in this context. Without a stderr, do nothing."""
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
