# SPDX-License-Identifier: Apache-2.0
"""Let several tuning processes of one device measure in turns, so that none is timed while another one runs.

Searching and compiling take as long, and continue during the measurements of others.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tvm

from comparison.lock_file import open_own_file
from tvm_stitch.relay.global_function import registered

_LOCAL_RUNNER = "auto_scheduler.local_runner.run"


def lock_path() -> Path:
    """Return the file whose lock a user's tuning processes hold while they measure.

    There is one for each ``CUDA_VISIBLE_DEVICES``.
    """
    devices = re.sub(r"\W+", "_", os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    return Path(tempfile.gettempdir()) / f"tvm_stitch-{os.getuid()}-measures-{devices}.lock"


@contextmanager
def measured_in_turns(lock: Path | None = None) -> Iterator[None]:
    """Hold the lock during each batch of measurements of Ansor's local runner, while this context is open.

    Args:
        lock: a file, :func:`lock_path` by default. It is made if it is missing.

    Raises:
        PermissionError: from the runner, if that path is a link or another user's.
    """
    path = lock or lock_path()
    original = tvm.get_global_func(_LOCAL_RUNNER)

    def run(*args: Any) -> Any:
        descriptor = open_own_file(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            return original(*args)
        finally:  # closing the file releases the lock, also when this process dies
            os.close(descriptor)

    with registered(_LOCAL_RUNNER, run):
        yield
