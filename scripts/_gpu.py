# SPDX-License-Identifier: Apache-2.0
"""End scripts that need a GPU on a machine without one: in one line, with the exit code of a usage error."""

from __future__ import annotations

import subprocess
import sys

_COUNT = """
import ctypes
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
assert driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
print(count.value)
"""


def gpus() -> int:
    """Return the number of CUDA devices that a process may use.

    A separate process asks the driver, since a process that has asked it cannot be forked any more.
    """
    asked = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, check=False)
    return int(asked.stdout) if asked.returncode == 0 else 0


def need_gpu(target: str = "cuda", instead: str = "") -> None:
    """Exit with 2 if ``target`` means a CUDA device and there is none.

    Args:
        target: the target of the script.
        instead: advice for a machine without a GPU.
    """
    if "cuda" in target.split()[0] and "emulated" not in target and not gpus():
        print(f"error: no CUDA device is found here{f'; {instead}' if instead else ''}", file=sys.stderr)
        raise SystemExit(2)
