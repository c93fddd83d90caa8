# SPDX-License-Identifier: Apache-2.0
"""Clocks for kernels: the host's, and events of a CUDA driver, here one that is played."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import pytest
import tvm

from tvm_stitch.execution import kernel_clock
from tvm_stitch.execution.kernel_clock import CudaClock, HostClock, clock_of


def test_the_host_tells_the_time_between_marks() -> None:
    clock = HostClock()
    clock.begin(3)
    begin = clock.mark()
    time.sleep(0.02)
    assert 0.02 <= clock.seconds(begin, clock.mark()) < 1


def test_each_device_has_its_own() -> None:
    assert isinstance(clock_of(tvm.cpu()), HostClock)
    with pytest.raises(ValueError, match="on CPUs and on CUDA devices, not on"):
        clock_of(tvm.device("opencl", 0))


class Driver:
    """A CUDA driver whose events are numbered, with 2 ms from each to the next."""

    def __init__(self) -> None:
        self.alive: set[int] = set()
        self.made = 0
        self.failing = ""
        self.streams: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args: 700 if name == self.failing else getattr(self, f"do_{name}")(*args)

    def do_cuEventCreate(self, event: Any, _flags: int) -> int:
        self.made += 1
        event._obj.value = self.made
        self.alive.add(self.made)
        return 0

    def do_cuEventRecord(self, event: ctypes.c_void_p, stream: Any) -> int:
        assert event.value in self.alive
        self.streams.append(stream)
        return 0

    def do_cuEventSynchronize(self, event: ctypes.c_void_p) -> int:
        return 0 if event.value in self.alive else 1

    def do_cuEventElapsedTime(self, elapsed: Any, begin: ctypes.c_void_p, end: ctypes.c_void_p) -> int:
        elapsed._obj.value = 2.0 * ((end.value or 0) - (begin.value or 0))
        return 0

    def do_cuEventDestroy_v2(self, event: ctypes.c_void_p) -> int:
        self.alive.remove(event.value or 0)
        return 0


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> tuple[CudaClock, Driver]:
    """A clock over a played driver. Its copies are those of the CPU, and small."""
    driver = Driver()
    monkeypatch.setattr(kernel_clock.ctypes, "CDLL", lambda _name: driver)
    monkeypatch.setattr(kernel_clock, "_COPY", 1 << 10)
    monkeypatch.setattr(kernel_clock, "_BANDWIDTH", 1e9)
    return CudaClock(tvm.cpu()), driver


def test_events_stand_in_the_default_stream_and_are_given_back(played: tuple[CudaClock, Driver]) -> None:
    clock, driver = played
    clock.begin(2)
    marks = [clock.mark() for _ in range(4)]
    assert driver.streams == [None] * 4
    assert clock.seconds(marks[0], marks[1]) == pytest.approx(2e-3)
    assert clock.seconds(marks[2], marks[3]) == pytest.approx(2e-3)
    assert driver.alive == set()


def test_the_device_is_kept_busy_for_as_long_as_launching_takes(
    played: tuple[CudaClock, Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, _ = played
    copies: list[int] = []

    class Buffer:
        def copyto(self, _other: Any) -> None:
            copies.append(2 * kernel_clock._COPY)

    clock.buffers = [Buffer(), Buffer()]
    clock.begin(100)
    assert sum(copies) / kernel_clock._BANDWIDTH >= 100 * kernel_clock.KEEP_BUSY


def test_an_error_of_the_driver_is_raised(played: tuple[CudaClock, Driver]) -> None:
    clock, driver = played
    driver.failing = "cuEventRecord"
    with pytest.raises(RuntimeError, match="cuEventRecord of the CUDA driver failed with error 700"):
        clock.mark()
