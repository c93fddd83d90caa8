# SPDX-License-Identifier: Apache-2.0
"""Faults that the emulator found in a launch."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

# The order is that of ReportKind in runtime/emulator.h. The host finds "unwritten" after the last launch.
KINDS = (
    "out-of-bounds",
    "uninitialized-read",
    "race",
    "double-write",
    "misaligned",
    "divergent-barrier",
    "deadlock",
    "shuffle",
    "unsupported",
    "crash",
    "timeout",
    "launch",
    "unwritten",
)


@dataclass(frozen=True)
class Report:
    """One finding. ``kind`` is one of KINDS.

    ``array`` names the kernel parameter or shared array ("" if none), and ``offset`` is in elements. ``block`` and
    ``thread`` are (x, y, z) of the thread that noticed. ``count`` is the number of times that the launch met it.
    """

    kind: str
    kernel: str
    message: str
    array: str = ""
    offset: int = -1
    block: tuple[int, int, int] = (0, 0, 0)
    thread: tuple[int, int, int] = (0, 0, 0)
    count: int = 1

    def __str__(self) -> str:
        where = f" {self.array}[{self.offset}]" if self.array else ""
        return f"{self.kind}: {self.kernel}{where} by block {self.block} thread {self.thread}: {self.message}"


class ReportRecord(ctypes.Structure):
    """Mirror of ReportRecord in runtime/emulator.h."""

    _fields_ = [
        ("kind", ctypes.c_int32),
        ("line", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("block", ctypes.c_uint32 * 3),
        ("thread", ctypes.c_uint32 * 3),
        ("other_block", ctypes.c_uint32 * 3),
        ("other_thread", ctypes.c_uint32 * 3),
        ("has_other", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("array", ctypes.c_char * 64),
        ("message", ctypes.c_char * 232),
    ]

    def to_report(self, kernel: str) -> Report:
        """Return the record as a Report of `kernel`."""
        message = self.message.decode(errors="replace")
        if self.has_other:
            message += f" (the other: block {tuple(self.other_block)} thread {tuple(self.other_thread)})"
        if self.line:
            message += f" (line {self.line} of the kernel's source)"
        block, thread = self.block, self.thread
        return Report(
            kind=KINDS[self.kind],
            kernel=kernel,
            message=message,
            array=self.array.decode(errors="replace"),
            offset=self.offset,
            block=(block[0], block[1], block[2]),
            thread=(thread[0], thread[1], thread[2]),
            count=self.count,
        )
