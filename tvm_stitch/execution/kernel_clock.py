# SPDX-License-Identifier: Apache-2.0
"""What time it is for kernels: on a CPU the process's clock, on a CUDA device events between the kernels."""

from __future__ import annotations

import ctypes
import time
from typing import Any, Protocol

import tvm

KEEP_BUSY = 30e-6
"""Seconds of copies in front of the kernels of a call, for each: longer than the host takes to launch one."""
_COPY = 1 << 28
"""Bytes of such a copy."""
_BANDWIDTH = 8e12
"""Bytes a second that no device copies."""


class KernelClock(Protocol):
    """Takes the time between kernels."""

    def begin(self, kernels: int) -> None:
        """A call with about so many kernels comes next."""

    def mark(self) -> Any:
        """Return the time at this place in the order of launches."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two marks. On a GPU this waits for the second."""


class HostClock:
    """For kernels that are done when their call returns."""

    def begin(self, kernels: int) -> None:
        """Nothing has to be prepared."""

    def mark(self) -> float:
        """Seconds since some time."""
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        """Between two marks."""
        return end - begin


class CudaClock:
    """Events in the stream of a CUDA device.

    Copies in front keep the device busy until the call's kernels are launched, so that they run one right behind the
    other, and what lies between two events is a kernel and no wait for the host.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.buffers = [tvm.runtime.empty((_COPY,), "uint8", device) for _ in range(2)]

    def begin(self, kernels: int) -> None:
        """Give the device copies to do, for as long as launching the kernels takes."""
        self.device.sync()
        for _ in range(1 + round(kernels * KEEP_BUSY * _BANDWIDTH / (2 * _COPY))):
            self.buffers[0].copyto(self.buffers[1])

    def mark(self) -> ctypes.c_void_p:
        """Return an event at this place of the default stream, in which TVM launches kernels."""
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), 0)
        self._call("cuEventRecord", event, None)
        return event

    def seconds(self, begin: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        """Between two events, which are given back."""
        self._call("cuEventSynchronize", end)
        elapsed = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(elapsed), begin, end)
        for event in (begin, end):
            self._call("cuEventDestroy_v2", event)
        return elapsed.value * 1e-3

    def _call(self, name: str, *args: Any) -> None:
        if code := getattr(self.driver, name)(*args):
            raise RuntimeError(f"{name} of the CUDA driver failed with error {code}")


def clock_of(device: Any) -> KernelClock:
    """Return a clock for a device's kernels.

    Raises:
        ValueError: for a device that is neither a CPU nor a CUDA device.
    """
    kinds = {tvm.cpu().dlpack_device_type(): "cpu", tvm.cuda().dlpack_device_type(): "cuda"}
    kind = kinds.get(device.dlpack_device_type())
    if kind is None:
        raise ValueError(f"kernels are timed on CPUs and on CUDA devices, not on {device}")
    return HostClock() if kind == "cpu" else CudaClock(device)
