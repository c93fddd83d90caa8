# SPDX-License-Identifier: Apache-2.0
"""The environment of worker processes of Ansor and MetaSchedule, which inherit nothing else."""

from __future__ import annotations

import os
import sys

from . import libraries, locate


def export(tvm: locate.TvmInstall, driver: libraries.Library, hooked: bool) -> None:
    """Set the variables with which child processes find the wheel's TVM.

    If the import hook runs in every process of this Python (``hooked``), they find it like this process. Then
    nothing is set, because it could disturb a child with another Python and another TVM.
    """
    # Otherwise AutoTVM looks up schedules on the network, and retries for minutes without one.
    os.environ.setdefault("TOPHUB_LOCATION", "NONE")
    if hooked and not locate.forced:
        return
    python_dir = str(tvm.python_dir)
    if python_dir not in sys.path:
        sys.path.insert(0, python_dir)
    _add("PYTHONPATH", python_dir, first=True)
    os.environ["TVM_LIBRARY_PATH"] = str(tvm.library_dir)
    for soname in libraries.CUDA_LIBRARIES:
        if wheel := libraries.in_wheels(soname):
            _add("LD_LIBRARY_PATH", str(wheel.parent))
    if driver.is_stub:
        _add("LD_LIBRARY_PATH", str(driver.path.parent))


def _add(variable: str, folder: str, first: bool = False) -> None:
    """Add a folder to a variable that lists folders: last, so that the user's folders take precedence, or first."""
    folders = [f for f in os.environ.get(variable, "").split(os.pathsep) if f and f != folder]
    os.environ[variable] = os.pathsep.join([folder, *folders] if first else [*folders, folder])
