# SPDX-License-Identifier: Apache-2.0
"""Order an aligned graph into passes over a row's columns, and choose which values are kept between passes.

A pass lies between two reductions: it evaluates the operands of its reductions and outputs, column by column. Values
used by several passes are either kept or computed again from kept ones. Kept values are Local: in registers, or on
long rows in shared memory.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache

from ...graph.classify import is_heavy
from ...graph.extent import ByExtent, Extent, extent_key, product, same
from ...graph.ir import Operator, Tensor
from .alignment import Alignment, Key
from .domain import At, Point

Leaf = tuple[Tensor, Point]


@dataclass(frozen=True, eq=False)
class RowLoop:
    """One sweep over the columns of a row.

    ``row_values`` are evaluated once a row before the sweep, and ``values`` column by column, in order. ``loads`` are
    the inputs and ``reads`` the values kept by earlier passes that they read at each column. ``cross_row`` are
    reductions across rows, accumulated over all rows of a block.
    """

    level: int
    columns: Extent
    reduces: Sequence[Operator] = ()
    outputs: Sequence[Key] = ()
    row_values: Sequence[Key] = ()
    values: Sequence[Key] = ()
    loads: Sequence[Leaf] = ()
    reads: Sequence[Key] = ()
    cross_row: Sequence[Key] = ()


@dataclass(frozen=True, eq=False)
class LoopNest:
    """All passes in order, the row values and outputs that follow the last one, and the values kept between passes.

    ``final_cross_row`` are reductions across rows whose operand is a row value. ``hoisted`` are values that no row
    changes, to be evaluated before the first one, and ``below_hoisted`` the single values that these read, producers
    first. ``independent`` are values of a row that are read behind reductions
    and depend on none, such as the element that an index picks. Loading them first hides the time of the loads.
    """

    passes: Sequence[RowLoop]
    final_values: Sequence[Key]
    row_outputs: Sequence[Key]
    kept_values: Set[Key]
    kept_loads: Set[Leaf]
    final_cross_row: Sequence[Key] = ()
    hoisted: Sequence[Key] = ()
    independent: Sequence[Key] = ()
    below_hoisted: Sequence[Key] = ()

    def over(self, columns: Extent) -> list[RowLoop]:
        """Return the passes over a column space."""
        key = extent_key(columns)
        return [p for p in self.passes if extent_key(p.columns) == key]

    def loading(self, leaf: Leaf) -> RowLoop:
        """Return the first pass that loads an input."""
        return next(p for p in self.passes if leaf in p.loads)

    @property
    def spaces(self) -> list[Extent]:
        """The column spaces that passes are over, each once."""
        return list(ByExtent((p.columns, None) for p in self.passes))

    @property
    def cross_row(self) -> list[Key]:
        """All reductions across rows: of columns pass by pass, then those of row values."""
        return [*(k for p in self.passes for k in p.cross_row), *self.final_cross_row]


class Keep(enum.Enum):
    """The values that may stay on chip between passes."""

    ALL = "loads and values"
    LOADS = "loads only; values are computed again"
    NOTHING = "nothing; later passes read their inputs again"


@lru_cache(maxsize=64)  # each mapping that is tried asks for the same few
def schedule(alignment: Alignment, keep: Keep = Keep.ALL, hoist: bool = False) -> LoopNest:
    """Return the passes. With ``hoist``, costly values that are the same for all rows are left out of them."""
    return _Scheduler(alignment, _invariant(alignment) if hoist else []).run(keep)


def _invariant(alignment: Alignment) -> list[Key]:
    """Return the values at points without a row that take more than a load or two, producers first."""
    invariant = []
    for op, point in alignment.reads:
        # A single row has the results of its reductions at a point without a row too.
        if alignment.level.get((op, point), 0):
            continue
        if point.at in (At.COLUMN, At.ONE) and not op.is_reduce:
            if len(op.accesses) >= alignment.choices.hoisted_reads or is_heavy(op.value):
                invariant.append((op, point))
    return invariant


def is_streamed(rows: Extent, leaf: Leaf) -> bool:
    """Return whether an input is of about the domain's size, so that every row reads its own slice of it.

    Smaller ones (scales, biases, masks) are shared by rows and live in the caches: keeping them gains nothing.
    """
    tensor, point = leaf
    if point.at is At.FULL:
        return True
    if point.at is not At.INDEX:
        return False
    points = product([rows, point.columns])
    if isinstance(points, int) and isinstance(tensor.size, int):
        return 2 * tensor.size > points
    return same(tensor.size, points)


@dataclass(frozen=True, eq=False)
class _Roots:
    """The roots of a pass: its reductions along and across rows, and its outputs."""

    level: int
    columns: Extent
    reduces: list[Operator] = field(default_factory=list)
    outputs: list[Key] = field(default_factory=list)
    cross_row: list[Key] = field(default_factory=list)


class _Scheduler:
    def __init__(self, alignment: Alignment, hoisted: list[Key]):
        self.al = alignment
        self.hoisted = hoisted
        self.own = set(alignment.graph.operators)

    def run(self, keep: Keep) -> LoopNest:
        passes: dict[tuple[int, Hashable], _Roots] = {}
        row_outputs: list[Key] = []
        final_cross_row: list[Key] = []
        outputs = {t.producer for t in self.al.graph.outputs}
        for op, point in self.al.roots:
            if not point.per_column and (op in self.al.cross_row or not op.is_reduce):
                (final_cross_row if op in self.al.cross_row else row_outputs).append((op, point))
                continue
            level = self._root_level(op, point)
            p = passes.setdefault((level, extent_key(point.columns)), _Roots(level, point.columns))
            if op in self.al.cross_row:
                p.cross_row.append((op, point))
            elif op.is_reduce:
                p.reduces.append(op)
                if op in outputs:
                    row_outputs.append((op, self.al.row_point))
            else:
                p.outputs.append((op, point))
        order = [passes[k] for k in sorted(passes, key=lambda k: k[0])]
        # Reductions of a level come before outputs of the same level only if both need equal inputs.
        needs = [self._closure(p, set(self.hoisted)) for p in order]
        kept_values, kept_loads = self._choose(needs) if keep is not Keep.NOTHING else (set(), set())
        if keep is Keep.LOADS:
            kept_values = set()
        filled = self._fill(order, kept_values)
        used = {
            leaf for i, p in enumerate(filled) for leaf in p.loads if any(leaf in q.loads for q in filled[:i])
        }
        final: dict[Key, None] = {}
        for key in row_outputs:
            self._rows_below(key, final)
        for key in final_cross_row:
            self._row_reads(key, False, final)
        done = {k for p in filled for k in p.row_values}
        below: dict[Key, None] = {}
        for key in self.hoisted:
            self._row_reads(key, False, below)
        behind = [k for p in filled[1:] for k in p.row_values] + [k for k in final if k not in done]
        return LoopNest(
            filled,
            [k for k in final if k not in done],
            row_outputs,
            kept_values,
            kept_loads & used,
            final_cross_row,
            self.hoisted,
            [k for k in behind if not self.al.level[k]] if any(p.reduces for p in filled) else [],
            list(below),
        )

    def _root_level(self, op: Operator, point: Point) -> int:
        if not op.is_reduce or op in self.al.cross_row:
            return self.al.level[(op, point)]
        return self.al.level[(op, self.al.row_point)] - 1

    def _roots(self, p: _Roots) -> list[Key]:
        return [(op, self.al.domain.full(p.columns)) for op in p.reduces] + p.cross_row + p.outputs

    def _closure(self, p: _Roots, cut: set[Key]) -> tuple[dict[Key, None], dict[Leaf, None]]:
        """Return the per-column values (producers first) and loads that roots need, not looking below ``cut``."""
        values: dict[Key, None] = {}
        leaves: dict[Leaf, None] = {}

        def visit(key: Key) -> None:
            if key in values:
                return
            if key not in cut:
                for access, point in self.al.children(key):
                    if point is None or not point.per_column:
                        continue
                    producer = access.tensor.producer
                    if producer in self.own and producer is not None:
                        if not (access.guarded and point.at is At.INDEX):
                            visit((producer, point))
                    elif not access.guarded:
                        leaves[(access.tensor, point)] = None
            values[key] = None

        for key in self._roots(p):
            visit(key)
        return values, leaves

    def _choose(self, needs: list[tuple[dict[Key, None], dict[Leaf, None]]]) -> tuple[set[Key], set[Leaf]]:
        """Choose the values and loads to keep: heavy values, and values with several sources.

        The others are computed again from kept values.
        """
        rows = self.al.domain.rows
        count: dict[Key, int] = {}
        for values, _ in needs:
            for key in values:
                count[key] = count.get(key, 0) + 1
        kept: set[Key] = set()
        sources: dict[Key, frozenset] = {}
        for values, _ in needs:
            for key in values:
                if key in sources:
                    continue
                below: set = set()
                for access, point in self.al.children(key):
                    if point is None or not point.per_column:
                        continue
                    producer = access.tensor.producer
                    if producer in self.own and producer is not None:
                        child = (producer, point)
                        below |= {child} if child in kept else sources.get(child, frozenset())
                    else:
                        below.add((access.tensor, point))
                wide = sum(
                    1 for source in below if isinstance(source[0], Operator) or is_streamed(rows, source)
                )
                if count[key] > 1 and not key[0].is_reduce and (is_heavy(key[0].value) or wide > 1):
                    kept.add(key)
                sources[key] = frozenset(below)
        leaves = {leaf for _, loads in needs for leaf in loads if is_streamed(rows, leaf)}
        return kept, leaves

    def _fill(self, order: list[_Roots], kept: set[Key]) -> list[RowLoop]:
        """Return the passes without values that earlier passes kept. Only values that a later pass uses are kept."""
        available: set[Key] = set(self.hoisted)
        used: set[Key] = set()
        done_rows: set[Key] = set()
        passes = []
        for p in order:
            closure, leaves = self._closure(p, available)
            roots = set(self._roots(p))
            reads = [k for k in closure if k in available]
            used |= set(reads)
            values = [k for k in closure if k not in available or k in roots]
            rows: dict[Key, None] = {}
            for key in values:
                self._row_reads(key, False, rows)
            row_values = [k for k in rows if k not in done_rows]
            done_rows |= set(row_values)
            passes.append(
                RowLoop(
                    p.level,
                    p.columns,
                    p.reduces,
                    p.outputs,
                    row_values,
                    values,
                    list(leaves),
                    reads,
                    p.cross_row,
                )
            )
            available |= {k for k in closure if k in kept}
        kept &= used
        # A value is evaluated where it is first needed. Dropping an unused 'kept' mark changes no pass.
        return passes

    def _row_reads(self, key: Key, guarded: bool, rows: dict[Key, None]) -> None:
        """Add the row values that evaluating ``key`` reads, looking through values that are evaluated in place."""
        for access, point in self.al.children(key):
            producer = access.tensor.producer
            if point is None or producer is None or producer not in self.own:
                continue
            inside = guarded or access.guarded
            if inside and point.at is At.INDEX:  # evaluated in place, below its condition
                self._row_reads((producer, point), True, rows)
            elif not point.per_column:
                self._rows_below((producer, point), rows)

    def _rows_below(self, key: Key, rows: dict[Key, None]) -> None:
        if key in rows or key[0].is_reduce:
            return
        self._row_reads(key, False, rows)
        rows[key] = None
