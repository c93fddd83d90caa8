# SPDX-License-Identifier: Apache-2.0
"""Conditions on a position that are the same for all columns of a vector."""

from __future__ import annotations

from ... import compat
from ...compat import Expr
from ...graph.extent import bounded
from .domain import Domain


def uniform_columns(domain: Domain, condition: Expr, columns: int, vector: int) -> int:
    """Return how many neighbouring columns, from an aligned one on, decide alike: a power of two up to ``vector``."""
    while vector > 1:
        if columns % vector == 0 and is_uniform(domain, condition, columns, vector):
            return vector
        vector //= 2
    return 1


def is_uniform(domain: Domain, condition: Expr, columns: int, vector: int) -> bool:
    """Return whether a condition holds for all columns of any aligned vector, or for none."""
    kind = compat.kind(condition)
    if kind in ("And", "Or"):
        return all(is_uniform(domain, side, columns, vector) for side in (condition.a, condition.b))
    if kind not in ("LT", "LE", "GT", "GE"):
        return False
    less, greater = (condition.a, condition.b) if kind in ("LT", "LE") else (condition.b, condition.a)
    slack = (
        greater - less if kind in ("LE", "GE") else greater - less - 1
    )  # the condition holds if it is >= 0
    group = compat.tir.Var("group", "int64")
    analyzer = bounded([(domain.row, domain.rows), (group, columns // vector)])

    def at(element: int) -> Expr:
        return analyzer.simplify(compat.substitute(slack, {domain.column: group * vector + element}))

    first = at(0)
    steps = range(1, vector)
    if all(analyzer.can_prove_equal(at(e), first) for e in steps):
        return True
    for slope, rest in ((1, 0), (-1, vector - 1)):
        if all(analyzer.can_prove_equal(at(e) - first, slope * e) for e in steps):
            remainder = compat.tir.floormod(first, compat.const(vector, compat.dtype_of(first)))
            return bool(analyzer.can_prove_equal(remainder, rest))
    return False
