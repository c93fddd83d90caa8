# SPDX-License-Identifier: Apache-2.0
"""Let divisions of indices by symbols truncate where dividend and divisor are not negative.

A division that truncates is one instruction, and gives the same result where nothing is negative. TVM knows no sign
of a symbol.

Fault: TVM lowers a floor division with operands of unknown sign to a choice that repeats both operands. Nested
    divisions grow at each level, and LLVM takes minutes over one index.
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
    """Return the symbols that may be negative: those that are in no tensor's shape."""
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
    """Return an expression with truncating divisions by symbols, where the result is the same.

    Args:
        e: an expression of loop variables, lanes and extents, which are not negative.
        signed: the variables that may be negative.
        by_numbers: True if divisions by numbers truncate too.
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
    """Return True if an index is certainly not negative."""
    value = compat.int_value(e)
    if value is not None:
        return value >= 0
    name = compat.kind(e)
    if name in ("Var", "SizeVar"):
        return e not in signed
    if name == "Sub":  # x - x % n, a multiple of n
        rest = compat.kind(e.b) in ("FloorMod", "Mod")
        return rest and compat.structural_equal(e.a, e.b.a) and is_natural(e.a, signed)
    if name in ("FloorMod", "Mod", "Div", "FloorDiv", "Add", "Mul", "Min", "Max"):
        return is_natural(e.a, signed) and is_natural(e.b, signed)
    return False
