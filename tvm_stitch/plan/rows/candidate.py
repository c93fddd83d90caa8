# SPDX-License-Identifier: Apache-2.0
"""Candidate: one strategy's way to map the rows of a stitch op on a GPU, with its estimated time."""

from __future__ import annotations

from dataclasses import dataclass

from ...cost.rows import copy_seconds
from ...device import DeviceModel
from ...graph.dtype import item_bytes
from ...graph.extent import static_extent
from ..gpu.mapping import RowMapping
from ..gpu.uncoalesced import excess_bytes
from ..iteration.alignment import Alignment
from ..iteration.loops import LoopNest, is_streamed


@dataclass(frozen=True, eq=False)
class Candidate:
    """A strategy's proposal. The planner takes the candidate of the fewest seconds.

    Attributes:
        alignment: may be another one than the planner passed, of the same graph.
        schedule: the passes over a row.
        mapping: rows and columns over blocks and threads.
        seconds: estimated time without the launch. It is ``math.inf`` if extents are symbolic.
    """

    alignment: Alignment
    schedule: LoopNest
    mapping: RowMapping
    seconds: float


@dataclass(frozen=True)
class RowTraffic:
    """Bytes of one row: read for the first time, written, and read again. Inputs that rows share do not count."""

    read: int
    written: int
    again: int

    @property
    def first(self) -> int:
        """Bytes that no cache can save."""
        return self.read + self.written


def row_traffic(alignment: Alignment, sched: LoopNest) -> RowTraffic:
    """Return the traffic of a row. Columns of symbolic number count as none."""
    read = written = again = 0
    seen = set()
    for p in sched.passes:
        columns = int(p.columns) if isinstance(p.columns, int) else 0
        for leaf in p.loads:
            size = columns * item_bytes(leaf[0].dtype)
            if not is_streamed(alignment.domain.rows, leaf) or (leaf in seen and leaf in sched.kept_loads):
                continue
            if leaf in seen:
                again += size
            else:
                read += size
                seen.add(leaf)
        written += sum(columns * item_bytes(op.output.dtype) for op, _ in p.outputs)
    return RowTraffic(read, written, again)


def once_seconds(alignment: Alignment, sched: LoopNest, device: DeviceModel) -> float:
    """Return the seconds in which all rows are read and written once, in whole lines of memory."""
    return copy_seconds(static_extent(alignment.domain.rows) * row_traffic(alignment, sched).first, device)


def excess_seconds(alignment: Alignment, device: DeviceModel) -> float:
    """Return the seconds that uncoalesced accesses add, if no strategy transposes the inputs in shared memory."""
    return copy_seconds(excess_bytes(alignment), device)


def are_static(alignment: Alignment, sched: LoopNest) -> bool:
    """Return whether the rows and columns have static numbers, so that times are known."""
    return isinstance(alignment.domain.rows, int) and all(isinstance(p.columns, int) for p in sched.passes)
