# SPDX-License-Identifier: Apache-2.0
"""C++ that is compiled on demand: the compiler, and the private cache folder of its output."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from ..support.private_files import private_folder


def cache_folder(name: str) -> Path:
    """Return the folder of compiled libraries of one kind. Only this user may write to it, because libraries are
    loaded from it.

    It lies in $TVM_STITCH_CACHE_DIR, else below the user's cache folder. If the latter cannot be used, a warning
    gives the reason, and a temporary folder serves this process.

    Raises:
        PermissionError: if $TVM_STITCH_CACHE_DIR names a folder that others may write.
        OSError: if $TVM_STITCH_CACHE_DIR names a folder that cannot be created.
    """
    if root := os.environ.get("TVM_STITCH_CACHE_DIR"):
        return private_folder(Path(root) / name)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    try:
        return private_folder(Path(base) / "tvm_stitch" / name)
    except OSError as error:
        return _temporary_folder(name, str(error))


@functools.cache
def _temporary_folder(name: str, why: str) -> Path:
    """Return a folder that is removed when this process ends."""
    warnings.warn(
        f"compiled kernels are not kept: {why}; TVM_STITCH_CACHE_DIR names another folder", stacklevel=3
    )
    folder = tempfile.mkdtemp(prefix=f"tvm_stitch-{name}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@functools.cache
def compiler(purpose: str) -> tuple[str, str]:
    """Return the path and the version of the C++ compiler ($CXX or g++).

    Args:
        purpose: the reason why it is needed, for the message.

    Raises:
        RuntimeError: if there is none.
    """
    command = os.environ.get("CXX", "g++")
    path = shutil.which(command)
    if path is None:
        raise RuntimeError(f"{purpose}: {command} was not found")
    done = subprocess.run(
        [path, "--version"], capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    return path, done.stdout


def compile_whole(command: Sequence[str], output: Path, what: str) -> None:
    """Run a compiler. Its output appears at once and complete, so that processes may share the cache.

    Args:
        command: the command without the output.
        output: a path in a private folder.
        what: the compiled code, for the message.

    Raises:
        RuntimeError: if it does not compile, with the compiler's message.
    """
    with tempfile.NamedTemporaryFile(
        dir=output.parent, prefix=output.stem, suffix=".tmp", delete=False
    ) as scratch:
        pass
    try:
        done = subprocess.run(
            [*command, "-o", scratch.name],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            first = next((line for line in done.stderr.splitlines() if "error:" in line), "")
            raise RuntimeError(f"the C++ compiler rejected {what}: {first}\n{done.stderr[:6000]}")
        os.chmod(scratch.name, 0o700)  # the linker creates the file anew, with the umask's mode
        os.replace(scratch.name, output)
    finally:
        if os.path.exists(scratch.name):
            os.unlink(scratch.name)
