# SPDX-License-Identifier: Apache-2.0
"""Folders and files that no other user of the machine can have prepared: what is loaded from them is our own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def _flaw(path: Path, above: bool) -> str | None:
    """Why others decide what ``path`` holds; ``above``: it only leads to the folder in question."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        return f"{path} is not a folder"
    if found.st_uid != os.geteuid() and not (above and found.st_uid == 0):
        return f"{path} belongs to user {found.st_uid}"
    if found.st_mode & _OTHERS_WRITE and not (above and found.st_mode & stat.S_ISVTX):
        return f"{path} may be written by others"
    return None


def private_folder(path: Path) -> Path:
    """The folder, made (mode 700) if it is missing, once nobody else can write into it or put another in its place.

    The path is followed to where it leads; what counts are the folders there. Those above belong to this user or to
    root, and only those with the sticky bit may be written by others.

    Raises:
        PermissionError: if others can; it names the folder that lets them.
        OSError: if the folder cannot be made.
    """
    real = Path(os.path.realpath(path))
    missing = [p for p in (real, *real.parents) if not os.path.lexists(p)]
    for folder in reversed(missing):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:  # another process was faster; what it made is judged below
            pass
    for folder in (real, *real.parents):
        if flaw := _flaw(folder, above=folder != real):
            raise PermissionError(f"{path} is not private: {flaw}")
    return real


def check_own_file(path: Path) -> Path:
    """Return the path of a regular file that this user alone may write.

    Raises:
        PermissionError: if it is anything else, a symbolic link for example.
    """
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE:
        raise PermissionError(f"{path} is not a regular file that only user {os.geteuid()} writes")
    return path
