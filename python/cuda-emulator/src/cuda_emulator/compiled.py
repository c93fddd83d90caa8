# SPDX-License-Identifier: Apache-2.0
"""Compiled C++: the compiler, and the cache folder of libraries, which no other user can have prepared."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

CACHE = "CUDA_EMULATOR_CACHE_DIR"
"""The environment variable that names another cache folder."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """Return the folder of compiled kernels. Only this user may write to it.

    It is $CUDA_EMULATOR_CACHE_DIR, else a folder below the user's cache folder. If the latter cannot be used, a
    warning gives the reason, and a temporary folder serves this process.

    Raises:
        PermissionError: if $CUDA_EMULATOR_CACHE_DIR names a folder that others may write.
        OSError: if $CUDA_EMULATOR_CACHE_DIR names a folder that cannot be created.
    """
    if named := os.environ.get(CACHE):
        return _private(Path(named))
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    try:
        return _private(Path(base) / "cuda_emulator")
    except OSError as error:
        return _temporary(str(error))


@functools.cache
def _temporary(why: str) -> Path:
    """Return a folder that is removed when this process ends."""
    warnings.warn(f"compiled kernels are not kept: {why}; {CACHE} names another folder", stacklevel=3)
    folder = tempfile.mkdtemp(prefix="cuda_emulator-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _private(path: Path) -> Path:
    """Return the folder's real path if nobody else can write to it or replace it. Create it (mode 700) if missing.

    Symbolic links are followed, and the folders at the real path count. The folders above belong to this user or to
    root. Others may write to them only with the sticky bit.
    """
    real = Path(os.path.realpath(path))
    for folder in reversed([p for p in (real, *real.parents) if not os.path.lexists(p)]):
        folder.mkdir(mode=0o700, exist_ok=True)  # another process may be faster: its folder is checked below
    for folder in (real, *real.parents):
        status, above = os.lstat(folder), folder != real
        if status.st_uid != os.geteuid() and not (above and status.st_uid == 0):
            raise PermissionError(f"{path} is not private: {folder} belongs to user {status.st_uid}")
        if status.st_mode & _OTHERS_WRITE and not (above and status.st_mode & stat.S_ISVTX):
            raise PermissionError(f"{path} is not private: {folder} may be written by others")
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


@functools.cache
def compiler() -> tuple[str, str]:
    """Return the path and the version of the C++ compiler ($CXX or g++).

    Raises:
        RuntimeError: if there is none.
    """
    command = os.environ.get("CXX", "g++")
    path = shutil.which(command)
    if path is None:
        raise RuntimeError(
            f"the emulator needs a C++ compiler with -fsanitize=thread: {command} was not found"
        )
    done = subprocess.run(
        [path, "--version"], capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    return path, done.stdout


def compile_whole(arguments: Sequence[str], output: Path) -> None:
    """Run the compiler. Its output appears at once and complete, so that processes may share the cache.

    Args:
        arguments: the compiler's arguments without the output.
        output: a path in a private folder.

    Raises:
        RuntimeError: if it does not compile, with the compiler's message.
    """
    with tempfile.NamedTemporaryFile(
        dir=output.parent, prefix=output.stem, suffix=".tmp", delete=False
    ) as scratch:
        pass
    command = [compiler()[0], *arguments, "-o", scratch.name]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
        if done.returncode != 0:
            first = next((line for line in done.stderr.splitlines() if "error:" in line), "")
            raise RuntimeError(f"the C++ compiler rejected a kernel: {first}\n{done.stderr[:6000]}")
        os.chmod(scratch.name, 0o700)  # the linker makes the file anew, as the umask has it
        os.replace(scratch.name, output)
    finally:
        if os.path.exists(scratch.name):
            os.unlink(scratch.name)
