# SPDX-License-Identifier: Apache-2.0
"""How a stitch op is spread over a CPU: parallel tasks and SIMD lanes along rows and columns.

Lanes usually run along a row's columns. They run over neighbouring rows instead where these, and not the
columns, are neighbours in memory (softmax over the channels of an image, column sums) and where rows are
shorter than a vector.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from ..device import DeviceModel
from ..graph.classify import is_heavy
from ..graph.extent import Extent
from . import heuristics
from .alignment import Alignment
from .cpu_segments import Segment, column_segment, row_segment
from .mapping import RowMapping
from .passes import Schedule


class Lanes(enum.Enum):
    """What the lanes of a vector run over."""

    COLUMNS = "columns"
    ROWS = "rows"
    NONE = "none"


class Split(enum.Enum):
    """What parallel tasks divide."""

    ROWS = "rows"
    COLUMNS = "columns"


@dataclass
class CpuMapping(RowMapping):
    """Rows or columns over parallel tasks, and lanes along columns or rows.

    Attributes:
        lanes: what vectors run over; ``width`` is their length in elements.
        divide: what tasks divide. With ``Split.COLUMNS`` each pass is a parallel loop of its own over pieces
            of the columns, whose partial results are combined after it (few long rows, and flat domains).
        parallel: False runs all tasks one after the other; None decides at run time by the number of rows.
        rows_per_task: rows of a task (strips of ``strip`` rows where lanes run over rows).
        segments: for each column space (by its text) the inner part where accesses advance evenly.
        row_segment: the same for rows, where lanes run over them; it divides the rows.
        elements_per_task: columns of a task where columns are divided.
        serial_rows: the number of rows up to which a symbolic domain runs serially.
    """

    lanes: Lanes = Lanes.COLUMNS
    width: int = heuristics.CPU_LANES
    divide: Split = Split.ROWS
    parallel: bool | None = True
    rows_per_task: int = heuristics.TASK_ROWS
    strip: int = heuristics.CPU_LANES
    segments: dict[str, Segment] = field(default_factory=dict)  # type: ignore[assignment]
    row_segment: Extent = 1
    elements_per_task: int = 1 << 14
    serial_rows: int = 0

    def describe(self) -> dict[str, object]:
        """The mapping as plain data, for ``explain``."""
        return {
            "lanes along": self.lanes.value,
            "vector": self.width,
            "tasks over": self.divide.value,
            "parallel": "decided at run time" if self.parallel is None else self.parallel,
            "of a task": self.rows_per_task if self.divide is Split.ROWS else self.elements_per_task,
        }

    def segment(self, columns: Extent) -> Segment:
        """The inner part of a column space."""
        return self.segments[str(columns)]


def choose_cpu_mapping(alignment: Alignment, sched: Schedule, device: DeviceModel) -> CpuMapping:
    """The mapping of a stitch op on a CPU."""
    domain = alignment.domain
    extents = {str(p.columns): p.columns for p in sched.passes}
    segments = {s: column_segment(alignment, sched, e) for s, e in extents.items()}
    cost = _row_cost(sched)
    mapping = CpuMapping(1, 1, segments=segments)
    if domain.flat:
        return _flat(mapping, sched, cost, device)
    rows = domain.rows if isinstance(domain.rows, int) else None
    mapping.rows_per_task = max(1, min(heuristics.TASK_ROWS, round(heuristics.TASK_NS / cost)))
    if rows is None:
        mapping.parallel, mapping.serial_rows = None, max(1, round(heuristics.PARALLEL_NS / cost))
    else:
        mapping.parallel = rows > 1 and rows * cost > heuristics.PARALLEL_NS and device.sms > 1
        mapping.rows_per_task = max(
            1, min(mapping.rows_per_task, -(-rows // (heuristics.TASKS_A_CORE * device.sms)))
        )
    longest = max((e for e in extents.values() if isinstance(e, int)), default=1)
    across = row_segment(alignment, sched, segments, longest < heuristics.SHORT_LANES)
    if across is not None:
        mapping.row_segment = across
        return _strips(mapping, sched, cost, rows, device)
    if longest < mapping.width:
        mapping.lanes = Lanes.NONE if longest < heuristics.SHORTEST_LANES else Lanes.COLUMNS
        mapping.width = _shorter(longest)
    if (
        rows is not None
        and rows < heuristics.PIECES_A_CORE * device.sms
        and rows * cost > heuristics.PARALLEL_NS
        and device.sms > 1
    ):
        if cost > heuristics.PARALLEL_NS:  # few long rows: all tasks work on one row together
            mapping.divide, mapping.parallel = Split.COLUMNS, True
            mapping.elements_per_task = (
                -(-longest // (heuristics.PIECES_A_CORE * device.sms * mapping.width)) * mapping.width
            )
    return mapping


def _flat(mapping: CpuMapping, sched: Schedule, cost: float, device: DeviceModel) -> CpuMapping:
    mapping.divide = Split.COLUMNS
    columns = sched.passes[0].columns if sched.passes else 1
    if not isinstance(columns, int):
        mapping.parallel, per_element = None, cost
    else:
        per_element = cost / columns
        mapping.parallel = cost > heuristics.PARALLEL_NS and device.sms > 1
    unit = heuristics.TASK_ELEMENTS
    mapping.elements_per_task = max(unit, round(heuristics.TASK_NS / per_element / unit) * unit)
    mapping.serial_rows = max(1, round(heuristics.PARALLEL_NS / per_element))
    segment = min(
        (s.extent for s in mapping.segments.values() if isinstance(s.extent, int)),
        default=heuristics.CPU_LANES,
    )
    if segment < heuristics.SHORTEST_LANES:
        mapping.lanes = Lanes.NONE
    elif segment < mapping.width:
        mapping.width = _shorter(segment)
    return mapping


def _strips(
    mapping: CpuMapping, sched: Schedule, cost: float, rows: int | None, device: DeviceModel
) -> CpuMapping:
    """Lanes over rows: tasks handle strips of neighbouring rows, as wide as caches allow."""
    mapping.lanes = Lanes.ROWS
    segment = mapping.row_segment
    if isinstance(segment, int) and segment < mapping.width:
        mapping.width = _shorter(segment)
    kept = sum(4 * p.columns for _, p in sched.kept_values if isinstance(p.columns, int))
    pieces = max(1, min(heuristics.STRIP_PIECES, heuristics.STRIP_BYTES // (max(1, kept) * mapping.width)))
    if isinstance(segment, int):
        total = -(-segment // mapping.width)
        pieces = min(pieces, total)
        if rows is not None and mapping.parallel:  # enough strips for every core
            while (
                pieces > 1 and (rows // segment) * -(-total // pieces) < heuristics.PIECES_A_CORE * device.sms
            ):
                pieces -= 1
        # The last piece of a segment overlaps the one before: both in one strip, so one task writes both.
        if segment % mapping.width:
            while 1 < pieces < total and total % pieces == 1:
                pieces -= 1
    mapping.strip = pieces * mapping.width
    mapping.rows_per_task = max(1, round(heuristics.TASK_NS / (cost * mapping.strip)))
    if rows is not None and isinstance(segment, int):
        strips = (rows // segment) * -(-segment // mapping.strip)
        mapping.rows_per_task = max(
            1, min(mapping.rows_per_task, -(-strips // (heuristics.PIECES_A_CORE * device.sms)))
        )
    return mapping


def _shorter(elements: int) -> int:
    """The length of pieces of fewer elements than lanes."""
    return heuristics.SHORT_LANES if elements >= heuristics.SHORT_LANES else heuristics.SHORTEST_LANES


def _row_cost(sched: Schedule) -> float:
    """Nanoseconds of a row, roughly (a flat domain is one row; of an element where that is symbolic)."""
    total = heuristics.ROW_NS
    for p in sched.passes:
        heavy = sum(is_heavy(op.value) for op, _ in p.values)
        accesses = len(p.loads) + len(p.outputs)
        each = heuristics.element_ns(heavy, len(p.values) - heavy, accesses)
        total += each * p.columns if isinstance(p.columns, int) else each - heuristics.ROW_NS
    return max(total, heuristics.LEAST_NS)
