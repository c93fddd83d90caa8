# SPDX-License-Identifier: Apache-2.0
"""Write object files in a child process, because LLVM ends the process that has no space for one."""

from __future__ import annotations

import contextlib
import resource
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..support.child_process import ChildCrashed, ChildFailed, in_child

_one_at_a_time = threading.RLock()
"""Held while TVM's method is replaced."""


class NotWritten(RuntimeError):
    """An object file cannot be written. The message names the folder, its free bytes, and what to do."""


@contextlib.contextmanager
def objects_in_child() -> Iterator[None]:
    """Let TVM's modules write their files in child processes in this context.

    Raises:
        NotWritten: if such a process ends, as it does without space.
    """
    from tvm.runtime import Module

    with _one_at_a_time:
        original = Module.write_to_file
        Module.write_to_file = _in_child(original)
        try:
            yield
        finally:
            Module.write_to_file = original


def _in_child(original: Any) -> Any:
    """Return a method that writes a module's file as ``original`` does, in a child process."""

    def write(module: Any, file_name: str, fmt: str = "") -> None:
        folder = Path(file_name).absolute().parent
        free = shutil.disk_usage(folder).free
        try:
            in_child(lambda: original(module, file_name, fmt))
        except ChildCrashed as error:
            raise NotWritten(_reason(error.said or str(error), folder, free)) from None
        except ChildFailed:  # an exception of Python or TVM, which this call raises as it is
            original(module, file_name, fmt)

    return write


def _reason(said: str, folder: Path, free: int) -> str:
    """Return the reason why a file is missing from the last words of the process, with advice."""
    if "No space" in said or "quota" in said:
        return (
            f"the compiled model does not fit into {folder.parent}, where {free} bytes are free; "
            "free some, or name another folder with TMPDIR"
        )
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if "too large" in said:
        return f"the compiled model takes more than {most} bytes, the most of a file in {folder.parent} (ulimit -f)"
    return f"the compiled model cannot be written to {folder.parent}, where {free} bytes are free: {said}"
