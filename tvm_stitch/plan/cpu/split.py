# SPDX-License-Identifier: Apache-2.0
"""Rows or columns as a number of equal segments, with the ranges of both variables."""

from __future__ import annotations

from ... import compat
from ...compat import Expr, Var
from ...graph.extent import Extent, as_expr, quotient, same
from ..iteration.domain import Domain

Axes = list[tuple[Var, Extent]]


def split_columns(
    domain: Domain, var: Var, total: Extent, extent: Extent, last: int
) -> tuple[Axes, Expr, Var] | None:
    """Return the axes of ``outer * extent + inner`` for ``var``, that expression, and its ``inner``.

    ``inner`` is below extent - last.
    """
    outer, inner = compat.tir.Var("outer", "int64"), compat.tir.Var("inner", "int64")
    fewer = extent - last if isinstance(extent, int) else extent - compat.const(last, "int64")
    axes: Axes = [(inner, fewer)]
    if domain.row is not var:
        axes.append((domain.row, domain.rows))
    if same(extent, total):
        return axes, inner, inner
    count = quotient(total, extent)
    if count is None:
        return None
    return [*axes, (outer, count)], outer * as_expr(extent) + inner, inner
