# SPDX-License-Identifier: Apache-2.0
"""Map a stitch op to a CPU: parallel tasks, and SIMD lanes along rows and columns.

Lanes usually run along a row's columns. They run over neighbouring rows instead if rows are shorter than a vector.
They also do so if rows, and not columns, are neighbours in memory: in a softmax over an image's channels, in column
sums.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from ... import compat
from ...cost.choices import Choices
from ...cost.cpu import assumed_length, element_ns
from ...device import DeviceModel
from ...graph.classify import is_heavy
from ...graph.extent import ByExtent, Extent
from ..iteration.alignment import Alignment
from ..iteration.loops import LoopNest
from .segments import Segment, column_segment, row_segment
from .weights import WeightLanes, weight_lanes


class Lanes(enum.Enum):
    """The dimension that the lanes of a vector run over."""

    COLUMNS = "columns"
    ROWS = "rows"
    NONE = "none"


class Split(enum.Enum):
    """The dimension that parallel tasks divide."""

    ROWS = "rows"
    COLUMNS = "columns"


@dataclass(frozen=True)
class CpuMapping:
    """Rows or columns over parallel tasks, and lanes along columns or rows.

    Attributes:
        inner: of each column space the inner slice along which accesses advance evenly.
        lanes: the dimension that vectors run over.
        width: the elements of a vector.
        divide: the dimension that tasks divide. With ``Split.COLUMNS`` each pass is a parallel loop over pieces of
            the columns. Their partial results are combined after the loop. That is for few long rows, and for flat
            domains.
        parallel: False runs all tasks one after the other. None decides at run time by the number of rows.
        rows_per_task: rows of a task (strips of ``strip`` rows if lanes run over rows).
        row_segment: the inner slice of the rows, if lanes run over them. It divides the rows.
        elements_per_task: columns of a task if columns are divided.
        serial_rows: the number of rows up to which a symbolic domain runs serially. It counts points if columns are
            symbolic.
        task_points: the points of a task if columns are symbolic, else 0. If rows are long, a task has fewer than
            ``rows_per_task`` of them.
        tail_width: elements of the vectors that end a slice of symbolic length.
        columns_together: of each column space the columns that a piece of rows takes in one go, if lanes run over
            rows. Accumulators stay in registers meanwhile.
        weights: how vectors run along rows of weights, or None for other rows.
    """

    inner: ByExtent[Segment]
    width: int
    rows_per_task: int
    strip: int
    elements_per_task: int
    tail_width: int
    columns_together: ByExtent[int]
    lanes: Lanes = Lanes.COLUMNS
    divide: Split = Split.ROWS
    parallel: bool | None = True
    row_segment: Extent = 1
    serial_rows: int = 0
    task_points: int = 0
    weights: WeightLanes | None = None

    def describe(self) -> dict[str, object]:
        """Return the mapping as plain data, for ``explain``."""
        weights = {} if self.weights is None else {"weights": self.weights.describe()}
        return weights | {
            "lanes along": self.lanes.value,
            "vector": self.width if self.weights is None else self.weights.lanes,
            "tasks over": self.divide.value,
            "parallel": "decided at run time" if self.parallel is None else self.parallel,
            "of a task": self.rows_per_task if self.divide is Split.ROWS else self.elements_per_task,
        }

    def segment(self, columns: Extent) -> Segment:
        """Return the inner slice of a column space."""
        return self.inner[columns]


def choose_cpu_mapping(alignment: Alignment, sched: LoopNest, device: DeviceModel) -> CpuMapping:
    """Return the mapping of a stitch op on a CPU."""
    domain, spaces = alignment.domain, sched.spaces
    if _gathers(alignment, sched) >= device.choices.most_gathers:
        device = device.with_choices(cpu_lanes=min(device.choices.cpu_lanes, device.choices.short_lanes))
    inner = ByExtent((e, column_segment(alignment, sched, e)) for e in spaces)
    cost = _row_cost(sched, device.choices)
    usual = _usual(inner, device.choices)
    if domain.flat:
        return _flat(usual, sched, cost, device)
    rows = domain.rows if isinstance(domain.rows, int) else None
    symbolic = any(not isinstance(e, int) for e in spaces)
    longest = max((assumed_length(e, device.choices) for e in spaces), default=1)
    weights = weight_lanes(alignment, sched, device)
    if weights is not None:
        assert rows is not None
        return _of_weights(usual, weights, sched, rows, device)
    across = row_segment(alignment, sched, inner, longest < device.choices.short_lanes)
    parallel, serial_rows, task_points = None, 0, 0
    if symbolic:
        point = cost / longest
        serial_rows = max(1, round(device.choices.parallel_ns / point))
        task_points = max(1, round(device.choices.task_ns / point))
    elif rows is None:
        serial_rows = max(1, round(device.choices.parallel_ns / cost))
    else:
        parallel = rows > 1 and rows * cost > device.choices.parallel_ns and device.sms > 1
    if across is not None:
        return _strips(replace(usual, serial_rows=serial_rows), across, parallel, sched, cost, rows, device)
    lanes, width = _columns(_evenly(inner, longest), device.choices)
    rows_per_task = max(1, min(device.choices.task_rows, round(device.choices.task_ns / cost)))
    if symbolic:
        rows_per_task = device.choices.task_rows
    if rows is not None:
        rows_per_task = max(1, min(rows_per_task, -(-rows // (device.choices.tasks_per_core * device.sms))))
    mapping = replace(
        usual, lanes=lanes, width=width, parallel=parallel, rows_per_task=rows_per_task, serial_rows=serial_rows,
        task_points=task_points,
    )  # fmt: skip
    pieces = device.choices.pieces_per_core * device.sms
    if rows is None or rows >= pieces or device.sms == 1:
        return mapping
    if symbolic:  # Rows may turn out to be long: all tasks work on one row together.
        elements = max(1, -(-task_points // width)) * width
        return replace(mapping, divide=Split.COLUMNS, elements_per_task=elements)
    if cost > device.choices.parallel_ns:  # few long rows
        elements = -(-longest // (pieces * width)) * width
        return replace(mapping, divide=Split.COLUMNS, parallel=True, elements_per_task=elements)
    return mapping


def _gathers(alignment: Alignment, sched: LoopNest) -> int:
    """Return the number of elements at computed positions that a lane reads. Vectors have code for each lane's."""
    keys = {key for p in sched.passes for key in p.values}
    points = [point for key in keys for _, point in alignment.children(key)]
    return sum(
        point is None or (point.per_column and any(map(compat.has_load, point.indices))) for point in points
    )


def _of_weights(
    usual: CpuMapping, weights: WeightLanes, sched: LoopNest, rows: int, device: DeviceModel
) -> CpuMapping:
    """Return a mapping of rows of weights: each core takes neighbouring rows."""
    choices = device.choices
    cost = choices.row_ns + weights.sums.columns * len(weights.sums.reduces) * choices.weight_ns
    rows_per_task = max(1, -(-rows // (choices.tasks_per_core * device.sms)))
    if weights.block:
        rows_per_task = min(rows_per_task, choices.blocked_rows)
    parallel = rows * cost > choices.parallel_ns and device.sms > 1
    return replace(usual, parallel=parallel, rows_per_task=rows_per_task, weights=weights)


def _usual(inner: ByExtent[Segment], choices: Choices) -> CpuMapping:
    """Return a mapping of full vectors and full tasks."""
    together = ByExtent((columns, _columns_together(columns, choices.columns_together)) for columns in inner)
    return CpuMapping(
        inner, choices.cpu_lanes, choices.task_rows, choices.cpu_lanes, choices.task_elements, choices.shortest_lanes,
        together,
    )  # fmt: skip


def _columns_together(columns: Extent, most: int) -> int:
    """Return the columns that a piece of rows takes in one go, a divisor of all columns if there is one."""
    if not isinstance(columns, int):
        return most
    return next((n for n in range(most, 3, -1) if columns % n == 0), min(most, columns))


def _evenly(inner: ByExtent[Segment], length: int) -> int:
    """Return the length, or the number of elements with equal conditions if that is less.

    A vector has no condition inside then.
    """
    return min([length, *(s.alike for s in inner.values() if s.alike)])


def _columns(length: int, choices: Choices) -> tuple[Lanes, int]:
    """Return lanes along columns and their number, if so many lie evenly. Return no lanes if they fill no vector."""
    if length < choices.shortest_lanes:
        return Lanes.NONE, _shorter(length, choices)
    return Lanes.COLUMNS, choices.cpu_lanes if length >= choices.cpu_lanes else _shorter(length, choices)


def _flat(usual: CpuMapping, sched: LoopNest, cost: float, device: DeviceModel) -> CpuMapping:
    columns = sched.passes[0].columns if sched.passes else 1
    parallel, per_element = None, cost / assumed_length(columns, device.choices)
    if isinstance(columns, int):
        parallel = cost > device.choices.parallel_ns and device.sms > 1
    unit = device.choices.task_elements
    evenly = (s.extent for s in usual.inner.values() if isinstance(s.extent, int))
    lanes, width = _columns(
        _evenly(usual.inner, min(evenly, default=device.choices.cpu_lanes)), device.choices
    )
    return replace(
        usual,
        lanes=lanes,
        width=usual.width if lanes is Lanes.NONE else width,
        divide=Split.COLUMNS,
        parallel=parallel,
        elements_per_task=max(unit, round(device.choices.task_ns / per_element / unit) * unit),
        serial_rows=max(1, round(device.choices.parallel_ns / per_element)),
    )


def _strips(
    mapping: CpuMapping, segment: Extent, parallel: bool | None, sched: LoopNest, cost: float,
    rows: int | None, device: DeviceModel,
) -> CpuMapping:  # fmt: skip
    """Map lanes over rows: tasks handle strips of neighbouring rows, as wide as caches allow."""
    width = mapping.width
    if isinstance(segment, int) and segment < width:
        width = _shorter(segment, device.choices)
    kept = sum(4 * assumed_length(p.columns, device.choices) for _, p in sched.kept_values)
    pieces = max(1, min(device.choices.strip_pieces, device.choices.strip_bytes // (max(1, kept) * width)))
    wanted = device.choices.pieces_per_core * device.sms
    if isinstance(segment, int):
        total = -(-segment // width)
        pieces = min(pieces, total)
        if rows is not None and parallel:  # enough strips for every core
            while pieces > 1 and (rows // segment) * -(-total // pieces) < wanted:
                pieces -= 1
        # The last piece of a segment overlaps the one before. Both are in one strip, so that one task writes both.
        if segment % width:
            while 1 < pieces < total and total % pieces == 1:
                pieces -= 1
    strip = pieces * width
    rows_per_task = max(1, round(device.choices.task_ns / (cost * strip)))
    if rows is not None and isinstance(segment, int):
        strips = (rows // segment) * -(-segment // strip)
        rows_per_task = max(1, min(rows_per_task, -(-strips // wanted)))
    return replace(
        mapping, lanes=Lanes.ROWS, width=width, parallel=parallel, rows_per_task=rows_per_task, strip=strip,
        row_segment=segment,
    )  # fmt: skip


def _shorter(elements: int, choices: Choices) -> int:
    """Return the length of pieces of fewer elements than lanes."""
    return choices.short_lanes if elements >= choices.short_lanes else choices.shortest_lanes


def _row_cost(sched: LoopNest, choices: Choices) -> float:
    """Return the approximate nanoseconds of a row. A flat domain is one row. A symbolic row has its assumed length."""
    total = choices.row_ns
    for p in sched.passes:
        heavy = sum(is_heavy(op.value) for op, _ in p.values)
        accesses = len(p.loads) + len(p.outputs)
        each = element_ns(heavy, len(p.values) - heavy, accesses, choices)
        total += each * assumed_length(p.columns, choices)
    return max(total, choices.least_ns)
