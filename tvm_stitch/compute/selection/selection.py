# SPDX-License-Identifier: Apache-2.0
"""A selection of the first elements of sorted rows."""

from __future__ import annotations

from dataclasses import dataclass

from ...compat import Buffer, tir
from ...graph.extent import Extent, as_expr

MOST = 64
"""Most elements that a kernel takes of a row."""


@dataclass(frozen=True)
class Selection:
    """The first elements of each row of ``<rows, length>``, sorted: the largest ones, or the smallest.

    NaN is larger than all numbers. Of equal elements, the first comes first.

    Attributes:
        rows, length: extents of the input, which may be symbolic.
        count: elements taken of a row. A row that is shorter has its first elements at the end, in any order.
        largest: whether the largest are taken.
        dtype: type of the elements, one of ``ordered.NARROW``.
        results: the dtypes of what is returned in order: that of the elements, that of their indices, or both.
        values: whether the first of ``results`` are the elements.
    """

    rows: Extent
    length: Extent
    count: int
    largest: bool
    dtype: str
    results: tuple[str, ...]
    values: bool

    def buffers(self) -> tuple[Buffer, list[Buffer]]:
        """Return the input, and the results ``<rows, count>`` by the order of ``results``."""
        rows = as_expr(self.rows)
        x = tir.decl_buffer([rows, as_expr(self.length)], self.dtype, "x")
        names = ("values", "indices") if self.values else ("indices",)
        shape = [rows, as_expr(self.count)]
        return x, [tir.decl_buffer(shape, dtype, name) for name, dtype in zip(names, self.results)]
