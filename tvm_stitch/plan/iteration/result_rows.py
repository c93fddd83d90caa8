# SPDX-License-Identifier: Apache-2.0
"""Place an output by the sums of a product of few rows that it reads.

Each sum has one result for a column of the product, or for a few neighbouring columns. So the product's columns are the
rows of the domain, and its rows are columns.
"""

from __future__ import annotations

from collections.abc import Iterator

from ... import compat
from ...compat import Expr, tir
from ...graph.extent import Extent, as_expr, is_number, product, same, unflatten
from ...graph.ir import Access, Operator, Span
from .domain import At, Domain, Point


def along_results(op: Operator, columns: Extent, domain: Domain) -> Iterator[Point]:
    """Yield the points of an output at which it reads the sums of a product in their own rows.

    An access to a sum has one index that varies: an axis, or an axis divided by a number. The output may be
    element-wise behind the operator that has the access.

    Args:
        op: an output of the graph.
        columns: its elements in a row of the domain.
        domain: rows and columns.
    """
    if is_number(columns, 1) or not isinstance(columns, int):
        return
    for reader in _before(op):
        for access in reader.accesses:
            producer = access.tensor.producer
            if producer is None or not producer.contraction:
                continue
            indices = _indices(reader, access, columns, domain)
            if indices is not None:
                shape, own = [a.extent for a in reader.axes], op.output.shape
                if len(shape) != len(own) or not all(map(same, shape, own)):
                    indices = domain.reshaper.reshape(indices, shape, own, columns)
                yield Point(At.INDEX, domain.space(columns), tuple(indices))


def _before(op: Operator) -> Iterator[Operator]:
    """Yield an operator, and those of which it reads all elements in order, nearest first."""
    waiting, seen = [op], set()
    while waiting:
        at = waiting.pop(0)
        if at in seen or at.is_reduce:
            continue
        seen.add(at)
        yield at
        waiting += [a.tensor.producer for a in at.accesses if a.span is Span.ALL and a.tensor.producer]


def _indices(op: Operator, access: Access, columns: int, domain: Domain) -> list[Expr] | None:
    """Return the values of an operator's axes at which an access reads the domain's current row, or None."""
    live = [i for i in access.indices if compat.int_value(i) != 0]
    if len(live) != 1 or not same(access.tensor.size, domain.rows, domain.analyzer):
        return None
    (index,) = live
    width: int | None = 1
    if compat.kind(index) == "FloorDiv":
        width, index = compat.int_value(index.b), index.a
    if width is None or compat.kind(index) not in ("Var", "SizeVar"):
        return None
    number = next((i for i, axis in enumerate(op.axes) if axis.var.same_as(index)), None)
    if number is None or columns % width:
        return None
    axes = [a.extent for a in op.axes]
    if not same(axes[number], product([domain.rows, width]), domain.analyzer):
        return None
    wide = compat.const(width, "int64")
    others = unflatten(tir.floordiv(domain.column, wide), [e for i, e in enumerate(axes) if i != number])
    own = domain.row * wide + tir.floormod(domain.column, wide) if width > 1 else domain.row
    return [*others[:number], as_expr(own), *others[number:]]
