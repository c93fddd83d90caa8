# SPDX-License-Identifier: Apache-2.0
"""When neighbouring columns are neighbouring, aligned elements in memory, so that a vector may move them."""

from __future__ import annotations

from collections.abc import Sequence

from ... import compat
from ...compat import Analyzer, Expr
from ...graph.extent import Extent, as_expr, flatten
from .domain import Domain


def vectorizable(
    domain: Domain, indices: Sequence[Expr], shape: Sequence[Extent], columns: Extent, vector: int
) -> bool:
    """True when ``vector`` columns from an aligned column on are consecutive elements at an aligned offset.

    ``indices`` are written in the domain's row and column variables. What the domain takes to be a multiple counts as
    one.
    """
    if vector == 1:
        return True
    analyzer = Analyzer()
    group = compat.tir.Var("group", "int64")
    compat.bind_range(analyzer, domain.row, as_expr(domain.rows))
    groups = columns // vector if isinstance(columns, int) else compat.tir.floordiv(as_expr(columns), vector)
    compat.bind_range(analyzer, group, as_expr(groups))

    def offset(element: int) -> Expr:
        column = group * vector + element
        flat = flatten([compat.substitute(i, {domain.column: column}) for i in indices], shape)
        return as_expr(domain.in_multiples(flat))

    first = analyzer.simplify(offset(0))
    modular = analyzer.modular_set(first)
    if int(modular.base) % vector or (int(modular.coeff) % vector and int(modular.coeff) != 0):
        return False
    return all(analyzer.can_prove_equal(offset(e) - offset(0), e) for e in range(1, vector))
