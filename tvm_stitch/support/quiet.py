# SPDX-License-Identifier: Apache-2.0
"""Silence: without what native code writes to stderr, where it says nothing that users can use."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def without_native_stderr() -> Iterator[None]:
    """Drop what is written to the process's stderr meanwhile. Where there is none, there is nothing to drop."""
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
