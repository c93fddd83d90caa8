# SPDX-License-Identifier: Apache-2.0
"""Lock files in folders that other users can write to."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def open_own_file(path: Path) -> int:
    """Open a file to lock, and make it (mode 600) if it is missing. No link is followed, and nothing is written.

    Raises:
        PermissionError: if something else has the name, or another user's file.
        OSError: if it cannot be made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if os.path.islink(path):
            raise PermissionError(
                f"{path} is a symbolic link, and lock files must not be links: remove it"
            ) from error
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(f"{path} is not a regular file of user {os.geteuid()}: remove it")
    return descriptor
