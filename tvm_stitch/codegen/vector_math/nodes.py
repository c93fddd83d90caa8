# SPDX-License-Identifier: Apache-2.0
"""The children of a scalar expression, and the same expression with other children."""

from __future__ import annotations

from tvm_stitch import compat
from tvm_stitch.codegen.vector_math.scope import Expr

_BITWISE_NOT = "BitwiseNot"
_INNER = compat.BINARY | {_BITWISE_NOT, "Not", "Cast", "Select", "Let", "Call"}


def is_known(expr: Expr) -> bool:
    """Whether ``children`` sees all of the expression."""
    name = compat.kind(expr)
    return name in compat.LEAVES or name in _INNER or compat.is_load(expr)


def children(expr: Expr) -> list[Expr]:
    """Sub-expressions in order; none for leaves and for nodes with a body of their own (a Reduce)."""
    if compat.kind(expr) == _BITWISE_NOT:
        return [expr.a]
    return compat.operands(expr) if is_known(expr) else []


def rebuild(expr: Expr, old: list[Expr], new: list[Expr]) -> Expr:
    """``expr`` with its children ``old`` replaced by ``new``; the same object where nothing changed."""
    if all(after.same_as(before) for after, before in zip(new, old, strict=True)):
        return expr
    return compat.with_operands(expr, new)
