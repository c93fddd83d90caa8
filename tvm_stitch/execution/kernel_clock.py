# SPDX-License-Identifier: Apache-2.0
"""Clocks for kernels: the process's clock on a CPU, events between the kernels on a CUDA device."""

from __future__ import annotations

import ctypes
import time
from typing import Any, Protocol

import tvm

KEEP_BUSY = 30e-6
"""Seconds of copies in front of a call, per kernel. The host launches a kernel in less time."""
_COPY = 1 << 28
"""Bytes of such a copy."""
_BANDWIDTH = 8e12
"""Bytes per second that no device can copy."""


class KernelClock(Protocol):
    """Measures the time between kernels."""

    def begin(self, kernels: int) -> None:
        """Prepare for a call with about ``kernels`` kernels."""

    def mark(self) -> Any:
        """Return a mark of the current position in the order of launches."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds between two marks. On a GPU this waits for the second one."""


class HostClock:
    """A clock for kernels that are done when their call returns."""

    def begin(self, kernels: int) -> None:
        """Do nothing: a host clock needs no preparation."""

    def mark(self) -> float:
        """Return the seconds since some fixed time."""
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        """Return the seconds between two marks."""
        return end - begin


class CudaClock:
    """Events in the stream of a CUDA device.

    Copies in front keep the device busy until the call's kernels are launched. The kernels then run one right
    behind the other. So the time between two events is a kernel's time, without waiting for the host.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.buffers = [tvm.runtime.empty((_COPY,), "uint8", device) for _ in range(2)]

    def begin(self, kernels: int) -> None:
        """Start enough copies on the device to cover the time of launching the kernels."""
        self.device.sync()
        for _ in range(1 + round(kernels * KEEP_BUSY * _BANDWIDTH / (2 * _COPY))):
            self.buffers[0].copyto(self.buffers[1])

    def mark(self) -> ctypes.c_void_p:
        """Return an event at the current position of the default stream, in which TVM launches kernels."""
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), 0)
        self._call("cuEventRecord", event, None)
        return event

    def seconds(self, begin: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        """Return the seconds between two events, and destroy them."""
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
