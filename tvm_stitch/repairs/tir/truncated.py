# SPDX-License-Identifier: Apache-2.0
"""Let divisions of indices by symbols truncate where dividend and divisor are not negative.

A division that truncates is one instruction, and gives the same result where nothing is negative.

Fault: TVM lowers a floor division whose signs it does not know to a choice that repeats both operands, and it
    knows no sign of a symbol. Nested divisions grow at each level, and LLVM takes minutes over one index.
Seen in: TVM 0.27.0
Input: ``i // n // m // (n + m)`` of int64 variables
Upstream: none known
"""

from __future__ import annotations

from collections.abc import Collection

from ... import compat
from ...compat import Expr, Var, tir
from ...graph.ir import StitchGraph


def signed_symbols(graph: StitchGraph) -> frozenset[Var]:
    """The symbols of which nothing says that they are not negative: those that are in no tensor's shape."""
    natural = {
        v for t in graph.tensors() for s in t.shape if not isinstance(s, int) for v in compat.free_vars(s)
    }
    used: set[Var] = set()
    for op in graph.operators:
        natural |= {axis.var for axis in op.axes}
        used |= compat.free_vars(op.value)
        for access in op.accesses:
            used = used.union(*map(compat.free_vars, access.indices))
    return frozenset(used - natural)


def truncated(e: Expr, signed: Collection[Var], by_numbers: bool = False) -> Expr:
    """An expression with its divisions by symbols truncating where that is the same.

    Args:
        e: of variables that are not negative: of loops, lanes and extents.
        signed: the variables that may be.
        by_numbers: Do divisions by numbers truncate too?
    """

    def visit(e: Expr) -> Expr:
        e = compat.rebuild(e, visit)
        if compat.kind(e) not in ("FloorDiv", "FloorMod"):
            return e
        if compat.int_value(e.b) is not None and not by_numbers:
            return e
        if not (is_natural(e.a, signed) and is_natural(e.b, signed)):
            return e
        return (tir.truncdiv if compat.kind(e) == "FloorDiv" else tir.truncmod)(e.a, e.b)

    return visit(e)


def is_natural(e: Expr, signed: Collection[Var]) -> bool:
    """Is it certain that an index is not negative?"""
    value = compat.int_value(e)
    if value is not None:
        return value >= 0
    name = compat.kind(e)
    if name in ("Var", "SizeVar"):
        return e not in signed
    if name == "Sub":  # all that a divisor divides
        rest = compat.kind(e.b) in ("FloorMod", "Mod")
        return rest and compat.structural_equal(e.a, e.b.a) and is_natural(e.a, signed)
    if name in ("FloorMod", "Mod", "Div", "FloorDiv", "Add", "Mul", "Min", "Max"):
        return is_natural(e.a, signed) and is_natural(e.b, signed)
    return False
