# SPDX-License-Identifier: Apache-2.0
"""Folders and files that no other user of the machine can have prepared, so that loading them is safe."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def _flaw(path: Path, above: bool) -> str | None:
    """Return the reason why others control the contents of ``path``, or None.

    ``above``: the path only leads to the folder in question.
    """
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        return f"{path} is not a folder"
    if status.st_uid != os.geteuid() and not (above and status.st_uid == 0):
        return f"{path} belongs to user {status.st_uid}"
    if status.st_mode & _OTHERS_WRITE and not (above and status.st_mode & stat.S_ISVTX):
        return f"{path} may be written by others"
    return None


def private_folder(path: Path) -> Path:
    """Return the folder's real path if nobody else can write to it or replace it. Create it (mode 700) if missing.

    Symbolic links are followed, and the folders at the real path count. The folders above belong to this user or to
    root. Others may write to them only with the sticky bit.

    Raises:
        PermissionError: if others can write. It names the folder that lets them.
        OSError: if the folder cannot be created.
    """
    real = Path(os.path.realpath(path))
    missing = [p for p in (real, *real.parents) if not os.path.lexists(p)]
    for folder in reversed(missing):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:  # another process was faster, and its folder is checked below
            pass
    for folder in (real, *real.parents):
        if flaw := _flaw(folder, above=folder != real):
            raise PermissionError(f"{path} is not private: {flaw}")
    return real


def check_own_file(path: Path) -> Path:
    """Return the path of a regular file that only this user may write.

    Raises:
        PermissionError: if it is anything else, for example a symbolic link.
    """
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & _OTHERS_WRITE:
        raise PermissionError(f"{path} is not a regular file that only user {os.geteuid()} writes")
    return path


def check_trusted(path: Path) -> None:
    """Check that no other user but root can have written a file that is to be loaded, or can replace it.

    The file and its folder belong to this user or to root. Others may write to neither, but to the folder if it has the
    sticky bit. Symbolic links are followed, and the real path counts.

    Raises:
        PermissionError: with the path that others may have written, and what to do.
        OSError: if the file does not exist.
    """
    real = Path(os.path.realpath(path))
    for each in (real, real.parent):
        status = os.stat(each)
        if status.st_uid not in (0, os.geteuid()):
            raise PermissionError(
                f"{path} is not loaded, because {each} belongs to user {status.st_uid}, who could put any code there; "
                f"if you trust it, make a copy of your own: cp -r {real.parent} NEW"
            )
        sticky = each != real and status.st_mode & stat.S_ISVTX
        if not sticky and status.st_mode & _writers(status):
            raise PermissionError(
                f"{path} is not loaded, because other users may write to {each}; if you trust it: chmod go-w {each}"
            )


def _writers(status: os.stat_result) -> int:
    """Return the mode bits by which others write. The group's bit does not count if the group is this user alone."""
    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(status.st_gid)
    except KeyError:
        return _OTHERS_WRITE
    own = (
        status.st_gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    )
    return stat.S_IWOTH if own else _OTHERS_WRITE
