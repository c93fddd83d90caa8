# SPDX-License-Identifier: Apache-2.0
"""The domain a stitch op iterates, and where in it an operator is evaluated (index propagation, AStitch 4.2).

In-block stitching iterates *rows* x *columns*. Every reduction of the stitch op has one point per row, and one block
computes all of a row. The block that produces a reduction's result therefore also consumes it: the passive locality
check of AStitch 4.3 holds by construction. Rows and columns may be symbolic, and several column spaces (one for each
inner size) may share the rows. A stitch op without reductions may be *flat*: one row.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ... import compat
from ...compat import Analyzer, Expr, Var
from ...graph.extent import Extent, as_expr, extent_key, flatten, is_number, product, same, unflatten
from ...graph.ir import Access, Operator, Span, Tensor
from .index_space import IndexSpace
from .reshape import IndexReshaper


class At(enum.Enum):
    """The canonical positions at which a value is needed."""

    FULL = "full"  # flat index = row * columns + column
    ROW = "row"  # flat index = row
    COLUMN = "column"  # flat index = column
    ONE = "one"  # a single element
    INDEX = "index"  # explicit indices


@dataclass(frozen=True)
class Point:
    """The position in the domain at which an operator's value is needed: a canonical one, or explicit ``indices``.

    ``columns`` is the size of the column space meant (0 if the point does not depend on the column).
    """

    at: At
    columns: Extent = 0
    indices: tuple[Expr, ...] = ()

    @cached_property
    def _key(self) -> Hashable:
        return self.at, extent_key(self.columns), *map(compat.expression_key, self.indices)

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Point) and self._key == other._key)

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.indices))}]" if self.at is At.INDEX else self.at.value

    @property
    def per_column(self) -> bool:
        """True if the value differs between the columns of a row."""
        return self.at in (At.FULL, At.COLUMN) or (self.at is At.INDEX and not is_number(self.columns, 0))


ROW = Point(At.ROW)
ONE = Point(At.ONE)


@dataclass(frozen=True)
class Domain:
    """Rows x columns of a stitch op.

    ``multiples`` are symbols that are assumed to be multiples of a number: a kernel of such a domain is for these
    only.
    """

    rows: Extent
    flat: bool = False
    multiples: tuple[tuple[Var, int], ...] = ()
    given: IndexSpace | None = field(default=None, repr=False)
    """The indices of another domain of as many rows, if this one is to have the same."""

    _spaces: list[Extent] = field(default_factory=list, init=False, repr=False, compare=False)

    @cached_property
    def indices(self) -> IndexSpace:
        """The variables of rows and columns, and known facts about expressions over them."""
        return self.given or IndexSpace(self.rows, self.flat)

    def of_multiples(self, multiples: tuple[tuple[Var, int], ...]) -> Domain:
        """Return the same rows and columns, with some symbols assumed to be multiples."""
        return Domain(self.rows, self.flat, multiples, self.indices)

    @property
    def row(self) -> Var:
        """The number of a row."""
        return self.indices.row

    @property
    def column(self) -> Var:
        """The number of a column in its row."""
        return self.indices.column

    @property
    def analyzer(self) -> Analyzer:
        """The analyzer that compares extents. It knows nothing of row and column."""
        return self.indices.analyzer

    @cached_property
    def reshaper(self) -> IndexReshaper:
        """Rewrites indices of reshapes."""
        return IndexReshaper(self.analyzer)

    @property
    def row_point(self) -> Point:
        """The point of a value that a row has one of."""
        return ONE if is_number(self.rows, 1) else ROW

    def in_multiples(self, value: Extent) -> Extent:
        """Return an extent or index, with the symbols that are multiples of a number written as such."""
        if isinstance(value, int) or not self.multiples:
            return value
        return compat.substitute(value, self._multiples)

    @cached_property
    def _multiples(self) -> dict[Var, Expr]:
        """The replacements of the symbols that are multiples."""
        return {
            symbol: compat.tir.Var(f"{symbol.name}_of_{number}", "int64") * compat.const(number, "int64")
            for symbol, number in self.multiples
        }

    def full(self, columns: Extent) -> Point:
        """Return the point of an operator that has ``rows * columns`` points."""
        return Point(At.FULL, self.space(columns))

    def space(self, columns: Extent) -> Extent:
        """Return the column space of a size, however the size is written: ``n * m`` and ``m * n`` are one."""
        if isinstance(columns, int):
            return columns
        for known in self._spaces:
            if same(known, columns, self.analyzer):
                return known
        self._spaces.append(columns)
        return columns

    def move(self, op: Operator, point: Point, access: Access) -> Point:
        """Return the point that ``access`` of ``op`` reads, when ``op`` is evaluated at ``point``."""
        span, tensor = access.span, access.tensor
        if point.at is At.FULL:
            if span is Span.ALL:
                return self.row_point if is_number(point.columns, 1) and not self.flat else point
            if span is Span.LEADING and not self.flat:
                if same(product(op.extents[: access.cut]), self.rows, self.analyzer):
                    return self.row_point
            if span is Span.TRAILING and same(
                product(op.extents[access.cut :]), point.columns, self.analyzer
            ):
                return Point(At.COLUMN, point.columns)
        if point.at in (At.ROW, At.COLUMN, At.ONE) and span is Span.ALL:
            return point
        if span is Span.NOTHING:
            return ONE
        if point.at is At.INDEX and span is Span.ALL:
            indices = self.reshaper.reshape(point.indices, op.extents, tensor.shape, point.columns)
            return self.classify(tensor, indices, point)
        decided_by = op.spatial, op.reduce, access.indices, tensor.shape, point
        read = self.indices.once(decided_by, lambda: self._read(op, point, access))
        return self.full(read.columns) if read.at is At.FULL else read

    def _read(self, op: Operator, point: Point, access: Access) -> Point:
        """Return the point that an access reads by its indices alone."""
        indices = substitute_all(access.indices, self.axis_values(op, point))
        return self.classify(access.tensor, indices, point)

    def axis_values(self, op: Operator, point: Point) -> dict[Var, Expr]:
        """Return the values of an operator's axis variables at a point."""
        axes = op.axes
        extents = op.extents
        if point.at is At.INDEX:
            values = list(point.indices)
        elif point.at is At.ONE:
            values = [compat.const(0, "int64")] * len(axes)
        elif point.at is At.ROW:  # of a reduction: the point of its result
            values = unflatten(self.row, [a.extent for a in op.spatial])
        elif point.at is At.COLUMN:
            values = unflatten(self.column, extents)
        else:
            values = self.full_values(extents, point.columns)
        return {a.var: v for a, v in zip(axes, values)}  # a reduction's own axes are unset at ROW

    def input_indices(self, shape: Sequence[Extent], point: Point) -> list[Expr]:
        """Return the indices into an input of a shape at a point, in the row and column variables."""
        if point.at is At.INDEX:
            return list(point.indices)
        if point.at is At.ONE:
            return [compat.const(0, "int64") for _ in shape]
        if point.at is At.ROW:
            return unflatten(self.row, shape)
        if point.at is At.COLUMN:
            return unflatten(self.column, shape)
        return self.full_values(shape, point.columns)

    def output_indices(self, op: Operator, point: Point) -> list[Expr]:
        """Return the indices into an operator's output at a point, in the row and column variables."""
        values = self.axis_values(op, point)
        return [values[a.var] for a in op.spatial[: len(op.output.shape)]]

    def full_values(self, extents: Sequence[Extent], columns: Extent) -> list[Expr]:
        """Return the point with flat index ``row * columns + column`` in a space of the given extents."""
        return self.indices.full_values(extents, columns)

    def classify(self, tensor: Tensor, indices: Sequence[Expr], point: Point) -> Point:
        """Return the canonical point for explicit indices into ``tensor``, or an ``INDEX`` point."""
        simple = [self.indices.simplify(i, point.columns) for i in indices]
        used = set().union(*(compat.free_vars(i) for i in simple)) if simple else set()
        columns = point.columns if self.column in used else 0
        flat = self.indices.simplify(flatten(simple, tensor.shape), columns)
        size = tensor.size
        if compat.int_value(flat) == 0 and same(size, 1):
            return ONE
        if compat.same_var(flat, self.row):
            if same(size, self.rows, self.analyzer):
                return ROW
        elif not is_number(columns, 0):
            if self.flat or compat.same_var(flat, self.column):
                if compat.same_var(flat, self.column) and same(size, columns, self.analyzer):
                    return self.full(columns) if self.flat else Point(At.COLUMN, columns)
            elif same(size, product([self.rows, columns]), self.analyzer):
                whole = self.row * as_expr(columns) + self.column
                if self.indices.bounded(columns).can_prove_equal(flat, whole):
                    return self.full(columns)
        return Point(At.INDEX, columns, tuple(simple))


def substitute_all(indices: Sequence[Expr], values: dict[Var, Expr]) -> list[Expr]:
    """Substitute in a list of index expressions."""
    return [compat.substitute(i, values) for i in indices]
