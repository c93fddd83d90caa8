# SPDX-License-Identifier: Apache-2.0
"""Arrays in the memory of the emulated device, seen from Python."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np

from .build import load_runtime

POISON = 0xFF  # NaN in every float format, -1 in every integer format


class DeviceBuffer:
    """Bytes of device memory. ``data`` is a writable uint8 array of them, which keeps them alive."""

    def __init__(self, nbytes: int, itemsize: int = 1, poison: bool = True) -> None:
        """Allocate memory that nobody wrote.

        Raises:
            MemoryError: if the emulator has no room left.
        """
        lib, _ = load_runtime()
        self.address: int = lib.emu_alloc(nbytes, itemsize, POISON if poison else 0)
        if not self.address:
            raise MemoryError(f"the emulator has no room for an array of {nbytes} bytes")
        self.nbytes = nbytes
        raw = (ctypes.c_uint8 * max(nbytes, 1)).from_address(self.address)
        weakref.finalize(raw, lib.emu_free, self.address)
        self.data: np.ndarray = np.frombuffer(memoryview(raw), dtype=np.uint8)[:nbytes]

    @classmethod
    def of(cls, array: np.ndarray) -> DeviceBuffer:
        """Return a copy of a host array, counted as written."""
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        buffer = cls(flat.nbytes, array.itemsize)
        buffer.data[:] = flat
        mark(buffer.address, flat.nbytes, written=True)
        return buffer

    def numpy(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return a copy on the host."""
        return self.data.copy().view(dtype).reshape(shape)


def copy_bytes(address: int, nbytes: int) -> np.ndarray:
    """Return a copy of bytes that lie anywhere in this process, as uint8."""
    raw = (ctypes.c_uint8 * max(nbytes, 1)).from_address(address)
    return np.frombuffer(memoryview(raw), dtype=np.uint8)[:nbytes].copy()


def owns(address: int) -> bool:
    """Return whether an address lies in an array of the emulated device."""
    return bool(load_runtime()[0].emu_owns(address))


def mark(address: int, nbytes: int, written: bool) -> None:
    """Mark bytes as written, or as never written."""
    load_runtime()[0].emu_mark(address, nbytes, int(written))


def unwritten(address: int, nbytes: int) -> tuple[int, int]:
    """Return how many of these bytes nobody wrote, and the offset of the first of them (-1 if none)."""
    first = ctypes.c_int64(-1)
    count = load_runtime()[0].emu_count_unwritten(address, nbytes, ctypes.byref(first))
    return int(count), int(first.value)
