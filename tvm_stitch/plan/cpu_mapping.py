# SPDX-License-Identifier: Apache-2.0
"""How a stitch op is spread over a CPU: which parallel task handles which rows and columns, and what SIMD lanes run over.

Lanes usually run along a row's columns. They run over neighbouring rows instead where these, and not the columns, are
neighbours in memory (softmax over the channels of an image, column sums) and where rows are shorter than a vector.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .. import compat
from ..compat import Analyzer, Expr, Var
from ..device import DeviceModel
from ..graph.classify import is_heavy
from ..graph.extent import Extent, as_expr, flatten, product, quotient, same
from .alignment import Alignment, Key
from .domain import At, Domain, Point, is_zero
from .mapping import RowMapping, item_bytes
from .passes import Schedule

LANES = 32
"""Elements of a piece: four AVX2 registers, enough for one accumulator to hide the latency of an addition."""
LIGHT, HEAVY, ACCESS = 0.12, 0.9, 0.25
"""Rough cost of an element in nanoseconds: of a light operator, of a heavy one, of a load or store."""
PARALLEL_NS = 30_000.0
"""Work from which a parallel region (10 to 15 us) pays."""
TASK_NS = 20_000.0
"""Work of a task."""
TILE_BYTES = 256 * 1024
"""What a strip of rows may keep between passes (half of a core's L2 cache)."""


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
        divide: what tasks divide. With ``Split.COLUMNS`` each pass is a parallel loop of its own over pieces of the
            columns, whose partial results are combined after it (few long rows, and flat domains).
        parallel: False runs all tasks one after the other; None decides at run time by the number of rows.
        rows_per_task: rows of a task (strips of ``strip`` rows where lanes run over rows).
        segments: for each column space (by its text) the largest inner extent along which every access advances
            evenly; it divides the columns.
        row_segment: the same for rows, where lanes run over them.
        elements_per_task: columns of a task where columns are divided.
        serial_rows: the number of rows up to which a symbolic domain runs serially.
    """

    lanes: Lanes = Lanes.COLUMNS
    width: int = LANES
    divide: Split = Split.ROWS
    parallel: bool | None = True
    rows_per_task: int = 64
    strip: int = LANES
    segments: dict[str, Extent] = field(default_factory=dict)
    row_segment: Extent = 1
    elements_per_task: int = 1 << 14
    serial_rows: int = 0

    def segment(self, columns: Extent) -> Extent:
        """The inner extent of a column space."""
        return self.segments[str(columns)]


def choose_cpu_mapping(alignment: Alignment, sched: Schedule, device: DeviceModel) -> CpuMapping:
    """The mapping of a stitch op on a CPU."""
    domain = alignment.domain
    extents = {str(p.columns): p.columns for p in sched.passes}
    segments = {s: _column_segment(alignment, sched, e) for s, e in extents.items()}
    cost = _row_cost(sched)
    mapping = CpuMapping(1, 1, segments=segments)
    if domain.flat:
        return _flat(mapping, sched, cost, device)
    rows = domain.rows if isinstance(domain.rows, int) else None
    mapping.rows_per_task = max(1, min(64, round(TASK_NS / cost)))
    if rows is None:
        mapping.parallel, mapping.serial_rows = None, max(1, round(PARALLEL_NS / cost))
    else:
        mapping.parallel = rows > 1 and rows * cost > PARALLEL_NS and device.sms > 1
        mapping.rows_per_task = max(1, min(mapping.rows_per_task, -(-rows // (4 * device.sms))))
    longest = max((e for e in extents.values() if isinstance(e, int)), default=1)
    if _rows_are_lanes(alignment, sched, mapping, longest):
        return _strips(mapping, sched, cost, rows, device)
    if longest < mapping.width:
        mapping.lanes = Lanes.NONE if longest < 8 else Lanes.COLUMNS
        mapping.width = 16 if longest >= 16 else 8
    if rows is not None and rows < 2 * device.sms and rows * cost > PARALLEL_NS and device.sms > 1:
        if cost > PARALLEL_NS:  # few long rows: all tasks work on one row together
            mapping.divide, mapping.parallel = Split.COLUMNS, True
            mapping.elements_per_task = -(-longest // (2 * device.sms * mapping.width)) * mapping.width
    return mapping


def _flat(mapping: CpuMapping, sched: Schedule, cost: float, device: DeviceModel) -> CpuMapping:
    mapping.divide = Split.COLUMNS
    columns = sched.passes[0].columns if sched.passes else 1
    if not isinstance(columns, int):
        mapping.parallel, per_element = None, cost
    else:
        per_element = cost / columns
        mapping.parallel = cost > PARALLEL_NS and device.sms > 1
    mapping.elements_per_task = max(1024, round(TASK_NS / per_element / 1024) * 1024)
    mapping.serial_rows = max(1, round(PARALLEL_NS / per_element))
    segment = min((s for s in mapping.segments.values() if isinstance(s, int)), default=LANES)
    if segment < 8:
        mapping.lanes = Lanes.NONE
    elif segment < mapping.width:
        mapping.width = 16 if segment >= 16 else 8
    return mapping


def _strips(
    mapping: CpuMapping, sched: Schedule, cost: float, rows: int | None, device: DeviceModel
) -> CpuMapping:
    """Lanes over rows: a task handles strips of neighbouring rows, as many as its kept values leave cache for."""
    mapping.lanes = Lanes.ROWS
    segment = mapping.row_segment
    if isinstance(segment, int) and segment < mapping.width:
        mapping.width = 16 if segment >= 16 else 8
    kept = sum(4 * p.columns for _, p in sched.kept_values if isinstance(p.columns, int))
    pieces = max(1, min(8, TILE_BYTES // (max(1, kept) * mapping.width)))
    if isinstance(segment, int):
        total = -(-segment // mapping.width)
        pieces = min(pieces, total)
        if rows is not None and mapping.parallel:  # enough strips for every core
            while pieces > 1 and (rows // segment) * -(-total // pieces) < 2 * device.sms:
                pieces -= 1
        # The last piece of a segment overlaps the one before: both in one strip, so that one task writes both.
        if segment % mapping.width:
            while 1 < pieces < total and total % pieces == 1:
                pieces -= 1
    mapping.strip = pieces * mapping.width
    mapping.rows_per_task = max(1, round(TASK_NS / (cost * mapping.strip)))
    if rows is not None and isinstance(segment, int):
        strips = (rows // segment) * -(-segment // mapping.strip)
        mapping.rows_per_task = max(1, min(mapping.rows_per_task, -(-strips // (2 * device.sms))))
    return mapping


def _row_cost(sched: Schedule) -> float:
    """Nanoseconds that a row takes, roughly (a whole flat domain is one row; per element where it is symbolic)."""
    total = 20.0
    for p in sched.passes:
        heavy = sum(is_heavy(op.value) for op, _ in p.values)
        each = HEAVY * heavy + LIGHT * (len(p.values) - heavy) + ACCESS * (len(p.loads) + len(p.outputs))
        total += each * p.columns if isinstance(p.columns, int) else each - 20.0
    return max(total, 0.1)


# -- along which axis accesses advance evenly -------------------------------------------------------------------------


def _column_segment(alignment: Alignment, sched: Schedule, columns: Extent) -> Extent:
    """The largest trailing part of the column space along which no access jumps."""
    domain = alignment.domain
    flats = [f for f in _flat_indices(sched, columns) if domain.column in compat.free_vars(f)]
    keys = [k for p in sched.passes if str(p.columns) == str(columns) for k in p.values]
    candidates = _trailing(keys, columns, domain.analyzer)
    for segment in candidates:
        if all(_stride(domain, f, domain.column, columns, segment) is not None for f in flats):
            return segment
    longest = [c for c in candidates if isinstance(c, int)]
    return longest[-1] if longest and longest[-1] >= 8 else columns


def _trailing(keys: Iterable[Key], total: Extent, analyzer: Analyzer) -> list[Extent]:
    """``total`` and the products of trailing axes that divide it, largest first."""
    found: list[Extent] = [total]
    for op, point in keys:
        if point.at is At.INDEX:
            extents: Sequence[Extent] = [e for a in op.accesses for e in a.tensor.shape] and op.extents
        else:
            extents = op.extents
        for cut in range(1, len(extents)):
            part = product(extents[cut:])
            if isinstance(part, int) and part > 1 and quotient(total, part, analyzer) is not None:
                if not any(same(part, f, analyzer) for f in found):
                    found.append(part)
    first, rest = found[0], sorted((f for f in found[1:] if isinstance(f, int)), reverse=True)
    return [first, *rest]


def _flat_indices(sched: Schedule, columns: Extent) -> list[Expr]:
    """The flat indices, in the domain's variables, of the explicit accesses of a column space."""
    flats = []
    for p in sched.passes:
        if str(p.columns) == str(columns):
            flats += [flatten(pt.indices, t.shape) for t, pt in p.loads if pt.at is At.INDEX]
            flats += [flatten(pt.indices, op.output.shape) for op, pt in p.outputs if pt.at is At.INDEX]
    return flats


def _stride(domain: Domain, flat: Expr, var: Var, total: Extent, segment: Extent) -> int | None:
    """By how much a flat index advances with ``var`` inside a segment, None where that is not one constant."""
    import tvm

    analyzer = Analyzer()
    zero = compat.const(0, "int64")
    outer, inner = compat.tir.Var("outer", "int64"), compat.tir.Var("inner", "int64")
    for v, extent in ((domain.row, domain.rows), (domain.column, 0)):
        if v is not var and not is_zero(extent):
            analyzer.bind(v, tvm.ir.Range(zero, as_expr(extent)))
    if isinstance(segment, int) and segment == 1:
        return 0
    analyzer.bind(inner, tvm.ir.Range(zero, as_expr(segment) - compat.const(1, "int64")))
    base: Expr = zero
    if not same(segment, total):
        count = quotient(total, segment)
        if count is None:
            return None
        analyzer.bind(outer, tvm.ir.Range(zero, as_expr(count)))
        base = outer * as_expr(segment)
    here = compat.substitute(flat, {var: base + inner})
    there = compat.substitute(flat, {var: base + inner + compat.const(1, "int64")})
    return compat.int_value(analyzer.simplify(there - here))


def _rows_are_lanes(alignment: Alignment, sched: Schedule, mapping: CpuMapping, longest: int) -> bool:
    """Should lanes run over rows? Sets the row segment when they should."""
    domain = alignment.domain
    if isinstance(domain.rows, int) and domain.rows < 8:
        return False
    accesses: list[tuple[Point, Sequence[Extent], str, Extent]] = []
    for p in sched.passes:
        accesses += [(pt, t.shape, t.dtype, p.columns) for t, pt in p.loads if pt.at in (At.FULL, At.INDEX)]
        accesses += [(pt, op.output.shape, op.output.dtype, p.columns) for op, pt in p.outputs]
    along = sum(item_bytes(d) for pt, s, d, c in accesses if _along_columns(domain, pt, s, c, mapping))
    keys = [k for p in sched.passes for k in p.values]
    best, best_segment = 0, None
    for segment in _row_candidates(keys, domain):
        across = 0
        for pt, s, d, c in accesses:
            step: int | None
            if pt.at is At.FULL:
                step = c if isinstance(c, int) else None
            else:
                step = _stride(domain, flatten(pt.indices, s), domain.row, domain.rows, segment)
            across += item_bytes(d) if step == 1 else 0
        if across > best:
            best, best_segment = across, segment
    if best > along and best_segment is not None:
        mapping.row_segment = best_segment
        return True
    if longest < 16 and isinstance(domain.rows, int):
        mapping.row_segment = domain.rows
        return True
    return False


def _along_columns(domain: Domain, pt: Point, shape: Sequence[Extent], columns: Extent, m: CpuMapping) -> bool:
    if pt.at is At.FULL:
        return True
    return _stride(domain, flatten(pt.indices, shape), domain.column, columns, m.segment(columns)) == 1


def _row_candidates(keys: Iterable[Key], domain: Domain) -> list[Extent]:
    """Trailing parts of the row space, from 8 on, largest first."""
    found: list[Extent] = [domain.rows]
    for op, point in keys:
        for end in range(1, len(op.extents) + 1):
            if not same(product(op.extents[:end]), domain.rows, domain.analyzer):
                continue
            for cut in range(1, end):
                part = product(op.extents[cut:end])
                if isinstance(part, int) and part >= 8 and part not in [f for f in found if isinstance(f, int)]:
                    found.append(part)
    rest = sorted((f for f in found[1:] if isinstance(f, int)), reverse=True)
    return [*(f for f in found[:1] if isinstance(f, int)), *rest]
