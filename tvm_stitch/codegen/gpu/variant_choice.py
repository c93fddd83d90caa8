# SPDX-License-Identifier: Apache-2.0
"""The choice of the variant of a kernel to launch: the host decides by the lengths of rows at run time."""

from __future__ import annotations

from functools import reduce

from ...compat import Expr, tir
from ...graph.extent import Extent, as_expr
from ...plan.kernel import KernelPlan, Variant
from .. import builder as B


def launched(plan: KernelPlan) -> list[Extent]:
    """Return the launch counts of the variants and, last, of the stage that serves all rows.

    The count is 1 for one of them and 0 for the others.
    """
    if not plan.variants:
        return [1]
    left: Expr | None = None
    extents: list[Extent] = []
    for variant in plan.variants:
        serves = _serves(plan, variant)
        chosen = serves if left is None else tir.And(left, serves)
        extents.append(tir.Select(chosen, B.i64(1), B.i64(0)))
        left = tir.Not(serves) if left is None else tir.And(left, tir.Not(serves))
    assert left is not None
    return [*extents, tir.Select(left, B.i64(1), B.i64(0))]


def _serves(plan: KernelPlan, variant: Variant) -> Expr:
    spaces = [e for e in plan.stage.schedule.spaces if not isinstance(e, int)]
    conditions = [tir.LE(as_expr(e), B.i64(variant.longest)) for e in spaces]
    m = variant.stage.row_mapping
    if m.shared:  # threads without their own vector take the last one, which must exist
        conditions += [tir.GE(as_expr(e), B.i64(m.of(e).vector)) for e in spaces]
    conditions += [
        tir.EQ(tir.floormod(symbol, B.i64(number)), B.i64(0)) for symbol, number in variant.multiples
    ]
    return reduce(tir.And, conditions)
