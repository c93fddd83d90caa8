# SPDX-License-Identifier: Apache-2.0
"""Builds ``guard.c``, which ends a process whose kernels touch memory beyond their tensors."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("guard.c")


@cache
def guard() -> str | None:
    """Return the library to preload (``LD_PRELOAD``). None if no C compiler builds it."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    folder = tempfile.TemporaryDirectory(prefix="fuzzing-guard-")
    _kept.append(folder)
    library = Path(folder.name) / "guard.so"
    command = [compiler, "-O1", "-shared", "-fPIC", str(SOURCE), "-o", str(library), "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, check=False)
    return str(library) if done.returncode == 0 else None


_kept: list[tempfile.TemporaryDirectory[str]] = []
