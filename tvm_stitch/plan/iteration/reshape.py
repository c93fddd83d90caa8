# SPDX-License-Identifier: Apache-2.0
"""Propagate explicit indices through reshapes dimension by dimension, undoing merges that are split again.

The flat index would be correct as well. With symbolic extents, however, TVM's simplifier cannot undo the divisions
again. A chain of reshapes and transposes then grows into indices that take minutes to compile.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ... import compat
from ...compat import Analyzer, Expr
from ...graph.extent import Extent, extent_key, flatten, is_number, product, same, unflatten

Part = tuple[Expr, Extent]


class IndexReshaper:
    """Remembers the components of merged indices, so that splitting a merged index returns them.

    If 0 and the column are merged, the result is the column. Components are valid in one column space only, because
    the column of a wider space takes more values.
    """

    def __init__(self, analyzer: Analyzer):
        self.analyzer = analyzer
        self.merged: dict[Hashable, list[Part]] = {}

    def reshape(
        self, indices: Sequence[Expr], source: Sequence[Extent], target: Sequence[Extent], columns: Extent = 0
    ) -> list[Expr]:
        """Return the point ``indices`` of a space of extents ``source``, as a point of the space ``target``.

        ``columns`` is the size of the column space that the indices are written in.
        """
        space = extent_key(columns)
        parts: list[Part] = []
        for index, extent in zip(indices, source):
            parts += self._parts(index, extent, space)
        parts = [p for p in parts if not is_number(p[1], 1)]
        wanted = [e for e in target if not is_number(e, 1)]
        point: list[Expr] = []
        while parts or wanted:
            p, w = self._group(parts, wanted)
            point += self._convert(parts[:p], wanted[:w], space)
            parts, wanted = parts[p:], wanted[w:]
        rest = iter(point)
        return [compat.const(0, "int64") if is_number(e, 1) else next(rest) for e in target]

    def _parts(self, index: Expr, extent: Extent, space: Hashable) -> list[Part]:
        """Return the indices that were merged into an index, or the index itself if it runs over less than they do.

        An operand of a concatenation runs over less.
        """
        parts = self.merged.get((space, compat.expression_key(index)), []) if self.merged else []
        whole = bool(parts) and same(product(e for _, e in parts), extent, self.analyzer)
        return parts if whole else [(index, extent)]

    def _group(self, parts: list[Part], wanted: list[Extent]) -> tuple[int, int]:
        """Return the least numbers of leading dimensions on both sides that hold equally many points."""
        for p in range(1, len(parts) + 1):
            left = product(e for _, e in parts[:p])
            for w in range(1, len(wanted) + 1):
                if same(left, product(wanted[:w]), self.analyzer):
                    return p, w
        return len(parts), len(wanted)

    def _convert(self, parts: list[Part], wanted: list[Extent], space: Hashable) -> list[Expr]:
        if len(parts) == len(wanted) == 1:
            return [parts[0][0]]
        extents = [e for _, e in parts]
        flat = parts[0][0] if len(parts) == 1 else flatten([i for i, _ in parts], extents)
        if len(parts) > 1:
            flat = self.analyzer.simplify(flat)
            self.merged[space, compat.expression_key(flat)] = parts
        return [flat] if len(wanted) == 1 else unflatten(flat, wanted)
