# SPDX-License-Identifier: Apache-2.0
"""The indices of a domain's points: their variables, and known facts about expressions over these.

Fusion asks over and over whether operators may be one kernel, of few operators and then of more. Their accesses are
the same each time. :class:`IndexSpaces` lets the answers to one question serve the next.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from ... import compat
from ...compat import Analyzer, Expr
from ...graph.extent import Extent, as_expr, extent_key, is_number, product, same, unflatten

Found = TypeVar("Found")


class IndexSpace:
    """Indices over ``rows`` rows and columns, or over the one row of a ``flat`` domain.

    The stored answers follow from these two and from the question, whatever graph is asked about.
    """

    def __init__(self, rows: Extent, flat: bool = False):
        self.rows, self.flat = rows, flat
        self.row, self.column = (compat.tir.Var(name, "int64") for name in ("row", "col"))
        self.analyzer = Analyzer()
        self._bounds: dict[Hashable, Analyzer] = {}
        self._simplified: dict[Hashable, Expr] = {}
        self._full: dict[Hashable, Sequence[Expr]] = {}
        self._read: dict[Hashable, object] = {}

    def bounded(self, columns: Extent) -> Analyzer:
        """Return an analyzer that knows the ranges of row and column."""
        key = extent_key(columns)
        if key not in self._bounds:
            analyzer = Analyzer()
            compat.bind_range(analyzer, self.row, as_expr(self.rows))
            if not is_number(columns, 0):
                compat.bind_range(analyzer, self.column, as_expr(columns))
            self._bounds[key] = analyzer
        return self._bounds[key]

    def simplify(self, index: Expr, columns: Extent) -> Expr:
        """Return an index in the column space of a size, as TVM simplifies it."""
        key = extent_key(columns), compat.expression_key(index)  # accesses of many tensors have one index
        if key not in self._simplified:
            self._simplified[key] = self.bounded(columns).simplify(index)
        return self._simplified[key]

    def full_values(self, extents: Sequence[Extent], columns: Extent) -> list[Expr]:
        """Return the point with flat index ``row * columns + column`` in a space of the given extents."""
        key = extent_key(columns), *map(extent_key, extents)
        if key not in self._full:
            self._full[key] = self._full_values(extents, columns)
        return list(self._full[key])

    def _full_values(self, extents: Sequence[Extent], columns: Extent) -> Sequence[Expr]:
        if self.flat:
            return unflatten(self.column, extents)
        for cut in range(len(extents) + 1):
            if same(product(extents[:cut]), self.rows, self.analyzer):
                if same(product(extents[cut:]), columns, self.analyzer):
                    return unflatten(self.row, extents[:cut]) + unflatten(self.column, extents[cut:])
        return unflatten(self.row * as_expr(columns) + self.column, extents)

    def once(self, key: Hashable, find: Callable[[], Found]) -> Found:
        """Return the result for a key, which must determine it together with the space."""
        if key not in self._read:
            self._read[key] = find()
        result: Found = self._read[key]  # type: ignore[assignment]
        return result


class IndexSpaces:
    """One space for all domains of as many rows."""

    def __init__(self) -> None:
        self._known: dict[Hashable, IndexSpace] = {}

    def of(self, rows: Extent, flat: bool) -> IndexSpace:
        """Return the space of so many rows, a new one on the first request."""
        key = extent_key(rows), flat
        if key not in self._known:
            self._known[key] = IndexSpace(rows, flat)
        return self._known[key]
