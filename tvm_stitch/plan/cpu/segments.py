# SPDX-License-Identifier: Apache-2.0
"""Segments: the inner slice of the columns (or rows) along which all memory accesses advance evenly.

Lanes run along a segment, so that the elements they read are neighbours or evenly spaced. No index arithmetic is left
inside. A segment is cut at the positions where a condition changes, such as that of a concatenation or padding.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from ... import compat
from ...compat import Analyzer, Expr, Var
from ...cost.cpu import element_ns
from ...graph.classify import is_heavy
from ...graph.dtype import item_bytes
from ...graph.extent import (
    ByExtent,
    Extent,
    bounded,
    flatten,
    is_multiple,
    is_number,
    product,
    quotient,
    same,
)
from ...graph.index_division import Divisions, changes_with
from ...graph.ir import Tensor
from ..iteration.alignment import Alignment, Key
from ..iteration.domain import At, Domain, Point
from ..iteration.loops import LoopNest
from .cuts import cuts_of, differences
from .split import Axes, split_columns


@dataclass(frozen=True)
class Segment:
    """The inner ``extent`` of a column space, which divides it.

    ``cuts`` are the positions in it at which conditions change, 0 and the extent included. It is empty if the extent
    is symbolic. ``strided`` marks that some access is neither constant nor contiguous along the segment.

    A symbolic extent may be a multiple of ``alike`` elements, with the same conditions for each so many. ``alike`` is
    0 if that is unknown, and if there are no conditions. A task takes blocks of ``together`` segments, because
    strided accesses share cache lines with those of the neighbouring segments. It also does so if the segments of a
    block share values (``shares``), which are computed once.
    """

    extent: Extent
    cuts: tuple[int, ...] = ()
    strided: bool = False
    alike: int = 0
    together: int = 1
    shares: bool = False

    @property
    def parts(self) -> list[tuple[int, Extent]]:
        """Start and length of the parts between cuts."""
        if not self.cuts:
            return [(0, self.extent)]
        return [(a, b - a) for a, b in zip(self.cuts[:-1], self.cuts[1:], strict=True)]


def column_segment(alignment: Alignment, sched: LoopNest, columns: Extent) -> Segment:
    """Return the largest trailing slice of a column space along which no access jumps, or the fewest do."""
    domain = alignment.domain
    keys = _reachable(alignment, sched, columns)
    flats = [
        f for f in _flat_indices(alignment, sched, keys, columns) if domain.column in compat.free_vars(f)
    ]
    candidates = _trailing(keys, columns, domain.analyzer)
    chosen, strides = columns, [None] * (len(flats) + 1)  # type: tuple[Extent, list[int | None]]
    for extent in candidates:
        if isinstance(extent, int) and extent < alignment.choices.shortest_segment and chosen is not columns:
            break
        steps = _strides(domain, flats, domain.column, columns, extent)
        if steps.count(None) < strides.count(None):
            chosen, strides = extent, steps
        if None not in steps:
            break
    is_long = isinstance(columns, int) and columns >= alignment.choices.gathered_columns
    if is_long and isinstance(chosen, int) and chosen < alignment.choices.shortest_segment:
        if not domain.flat or any(is_heavy(op.value) for op, _ in keys):
            chosen = columns  # Vectors gather elements at the jumps. The alternative has no vectors at all.
    strided = any(s is None or s not in (0, 1) for s in strides)
    sharing = _sharing(alignment, sched, keys, columns, chosen)
    together = sharing or (alignment.choices.strided_segments_together if strided else 1)
    if not isinstance(chosen, int):
        return Segment(chosen, (), strided, _alike(alignment, keys, columns, chosen), together, sharing > 0)
    cuts = cuts_of(alignment, keys, columns, chosen)
    cuts = cuts if len(cuts) <= alignment.choices.cpu_cuts + 1 else (0, chosen)
    return Segment(chosen, cuts, strided, together=together, shares=sharing > 0)


def _sharing(
    alignment: Alignment, sched: LoopNest, keys: Sequence[Key], columns: Extent, extent: Extent
) -> int:
    """Return how many neighbouring segments a block should have, because they share values that take long.

    Blocks begin at multiples of the result. It is 0 if segments share no values, or only cheap ones.
    """
    choices = alignment.choices
    for part in _trailing(keys, columns, alignment.domain.analyzer):
        segments = quotient(part, extent)
        if segments is None or is_number(segments, 1):
            continue
        together = choices.strided_segments_together
        if not same(part, columns):  # no block may have segments of two parts
            fitting = range(together, 1, -1) if isinstance(segments, int) else ()
            together = next((n for n in fitting if segments % n == 0), 1)
        if together > 1 and _shared_ns(alignment, sched, columns, part, extent) >= choices.shared_ns:
            return together
    return 0


def _shared_ns(alignment: Alignment, sched: LoopNest, columns: Extent, part: Extent, extent: Extent) -> float:
    """Return the cost of an element's values that are the same in all segments of a part of the columns."""
    domain = alignment.domain
    split = split_columns(domain, domain.column, columns, part, 0)
    inside = None if split is None else split_columns(domain, split[2], part, extent, 0)
    if split is None or inside is None:
        return 0.0
    axes = [*inside[0], *(each for each in split[0] if each[0] is not split[2])]
    here, segment = compat.substitute(split[1], {split[2]: inside[1]}), inside[0][-1][0]

    def stays(key: Key) -> bool:
        if same(key[0].output.size, columns):
            return False
        indices = (compat.substitute(i, {domain.column: here}) for i in domain.output_indices(*key))
        return not changes_with(segment, indices, axes)

    shared = [
        op
        for p in sched.over(columns)
        for op, point in p.values
        if op not in p.reduces and stays((op, point))
    ]
    heavy = sum(is_heavy(op.value) for op in shared)
    return element_ns(heavy, len(shared) - heavy, 0, alignment.choices)


def row_segment(
    alignment: Alignment, sched: LoopNest, segments: ByExtent[Segment], short: bool
) -> Extent | None:
    """Return the inner slice of the rows that lanes should run over, None if they should run along columns.

    ``short`` says that rows are too short to fill a vector.
    """
    domain = alignment.domain
    if isinstance(domain.rows, int) and domain.rows < 8:
        return None
    accesses: list[tuple[Point, Sequence[Extent], str, Extent]] = []
    for p in sched.passes:
        accesses += [(pt, t.shape, t.dtype, p.columns) for t, pt in p.loads if pt.at in (At.FULL, At.INDEX)]
        accesses += [(pt, op.output.shape, op.output.dtype, p.columns) for op, pt in p.outputs]
    along = 0
    for pt, shape, dtype, columns in accesses:
        if pt.at is At.FULL:
            along += item_bytes(dtype)
        elif _stride(
            domain, flatten(pt.indices, shape), domain.column, columns, segments[columns].extent
        ) in (0, 1):
            along += item_bytes(dtype)
    keys = [k for p in sched.passes for k in p.values]
    best: tuple[int, Extent | None] = (0, None)
    for extent in _row_candidates(keys, domain):
        across = 0
        for pt, shape, dtype, columns in accesses:
            if pt.at is At.FULL:
                step = columns if isinstance(columns, int) else None
            else:
                step = _stride(domain, flatten(pt.indices, shape), domain.row, domain.rows, extent)
            across += item_bytes(dtype) if step in (0, 1) else 0
        if across > best[0]:
            best = (across, extent)
    if best[0] > along:
        return best[1]
    return _evenest(alignment, sched, keys) if short else None


def _evenest(alignment: Alignment, sched: LoopNest, keys: Sequence[Key]) -> Extent | None:
    """Return the largest slice of the rows along which the fewest accesses jump within a vector.

    Accesses in conditions count too. If the number of rows is symbolic, the result is None unless no access jumps.
    """
    domain = alignment.domain
    flats = []
    for columns in sched.spaces:
        reached = _reachable(alignment, sched, columns)
        flats += _flat_indices(alignment, sched, reached, columns)
    flats = [f for f in flats if domain.row in compat.free_vars(f)]
    best: tuple[int, Extent | None] = (len(flats) + 1, None)
    for extent in _row_candidates(keys, domain):
        assert isinstance(extent, int)
        # Between whole vectors an access may jump: each segment of a vector's length begins with a vector of its own.
        inside = alignment.choices.cpu_lanes if extent % alignment.choices.cpu_lanes == 0 else extent
        jumps = sum(_stride(domain, f, domain.row, domain.rows, inside) is None for f in flats)
        if jumps < best[0]:
            best = (jumps, extent)
        if not jumps:
            break
    return best[1] if isinstance(domain.rows, int) or best[0] == 0 else None


def _reachable(alignment: Alignment, sched: LoopNest, columns: Extent) -> list[Key]:
    """Return the values of a column space's passes, and those that are evaluated inside conditions."""
    found: dict[Key, None] = {}

    def visit(key: Key) -> None:
        if key in found:
            return
        found[key] = None
        for access, point in alignment.children(key):
            producer = access.tensor.producer
            if producer is not None and point is not None and point.per_column:
                if (producer, point) in alignment.reads:
                    visit((producer, point))

    for p in sched.over(columns):
        for key in p.values:
            visit(key)
    return list(found)


def _flat_indices(alignment: Alignment, sched: LoopNest, keys: Iterable[Key], columns: Extent) -> list[Expr]:
    """Return the flat indices, in the domain's variables, of the explicit accesses of a column space."""
    read: dict[tuple[Tensor, Point], None] = {}
    for key in keys:
        for access, point in alignment.children(key):
            if point is not None and point.at is At.INDEX and access.tensor.producer is None:
                read[(access.tensor, point)] = None
    flats = [flatten(point.indices, tensor.shape) for tensor, point in read]
    for p in sched.over(columns):
        flats += [flatten(pt.indices, op.output.shape) for op, pt in p.outputs if pt.at is At.INDEX]
    return flats


def _trailing(keys: Iterable[Key], total: Extent, analyzer: Analyzer) -> list[Extent]:
    """Return ``total`` and the products of trailing axes that divide it, largest first.

    Symbolic products of more axes come before those of fewer.
    """
    found: list[int] = []
    symbolic: list[tuple[int, Extent]] = []
    for op, _ in keys:
        for cut in range(1, len(op.extents)):
            part = product(op.extents[cut:])
            if not isinstance(part, int):
                if not any(same(part, e, analyzer) for e in (total, *(e for _, e in symbolic))):
                    symbolic.append((len(op.extents) - cut, part))
            elif part > 1 and part not in found and not is_number(total, part):
                found.append(part)
    parts = [e for _, e in sorted(symbolic, key=lambda each: -each[0])] + sorted(found, reverse=True)
    return [total, *(part for part in parts if quotient(total, part, analyzer) is not None)]


def _alike(alignment: Alignment, keys: Sequence[Key], columns: Extent, extent: Expr) -> int:
    """Return a number of elements by whose multiples a symbolic segment is cut into pieces.

    Conditions of ``if_then_else`` are constant in each piece.
    """
    domain = alignment.domain
    changing = [difference for _, difference in differences(domain, keys)]
    split = split_columns(domain, domain.column, columns, extent, 0)
    if split is None or not changing:
        return 0
    axes, column, inner = split
    for lanes in (
        alignment.choices.cpu_lanes,
        alignment.choices.short_lanes,
        alignment.choices.shortest_lanes,
    ):
        pieces = quotient(extent, lanes) if is_multiple(extent, lanes) else None
        if pieces is None:
            continue
        piece, lane = compat.tir.Var("piece", "int64"), compat.tir.Var("lane", "int64")
        begin = piece * compat.const(lanes, "int64")
        spread: Axes = [(piece, pieces), (lane, lanes), *((v, e) for v, e in axes if v is not inner)]
        analyzer, divisions = bounded(spread), Divisions(spread)
        here, first = (compat.substitute(column, {inner: position}) for position in (begin + lane, begin))
        if all(
            analyzer.can_prove_equal(
                *(divisions.divided(compat.substitute(each, {domain.column: at})) for at in (here, first))
            )
            for each in changing
        ):
            return lanes
    return 0


def _stride(domain: Domain, flat: Expr, var: Var, total: Extent, extent: Extent) -> int | None:
    """Return the step of a flat index along ``var`` inside a segment, None if it is not one constant."""
    return _strides(domain, [flat], var, total, extent)[0]


def _strides(
    domain: Domain, flats: Sequence[Expr], var: Var, total: Extent, extent: Extent
) -> list[int | None]:
    """Return the steps of flat indices along ``var`` inside a segment."""
    if is_number(extent, 1):
        return [0] * len(flats)
    split = split_columns(domain, var, total, extent, 1)
    if split is None:
        return [None] * len(flats)
    axes, here, _ = split
    next_one, analyzer, divisions = here + compat.const(1, "int64"), bounded(axes), Divisions(axes)
    known: dict[Hashable, int | None] = {}  # many accesses have one index
    keys = [compat.expression_key(flat) for flat in flats]
    for key, flat in zip(keys, flats):
        if key in known:
            continue
        after, before = compat.substitute(flat, {var: next_one}), compat.substitute(flat, {var: here})
        known[key] = compat.int_value(analyzer.simplify(after - before))
        if known[key] is None and not isinstance(extent, int):
            known[key] = divisions.constant_step(after, before)
    return [known[key] for key in keys]


def _row_candidates(keys: Iterable[Key], domain: Domain) -> list[Extent]:
    """Return the trailing slices of the row space, from 8 elements on, largest first."""
    found: set[int] = set()
    for op, _ in keys:
        for end in range(1, len(op.extents) + 1):
            if same(product(op.extents[:end]), domain.rows, domain.analyzer):
                parts = [product(op.extents[cut:end]) for cut in range(1, end)]
                found |= {part for part in parts if isinstance(part, int) and part >= 8}
    rows = [domain.rows] if isinstance(domain.rows, int) else []
    return [*rows, *sorted(found, reverse=True)]
