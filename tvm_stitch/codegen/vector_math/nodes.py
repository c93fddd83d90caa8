# SPDX-License-Identifier: Apache-2.0
"""The children of a scalar expression, and the same expression with other children."""

from __future__ import annotations

from tvm_stitch import compat
from tvm_stitch.codegen.vector_math.scope import Expr, dtype_of
from tvm_stitch.compat import tir

_UNARY = frozenset({"Not", "BitwiseNot"})
_LEAVES = frozenset({"Var", "SizeVar", "IntImm", "FloatImm", "StringImm"})
_INNER = compat.BINARY | _UNARY | {"Cast", "Select", "Let", "Call"}


def is_known(expr: Expr) -> bool:
    """Whether ``children`` sees all of the expression."""
    name = compat.kind(expr)
    return name in _LEAVES or name in _INNER or compat.is_load(expr)


def children(expr: Expr) -> list[Expr]:
    """Sub-expressions in order; none for leaves and for nodes with a body of their own (a Reduce)."""
    name = compat.kind(expr)
    if name in compat.BINARY:
        return [expr.a, expr.b]
    if name in _UNARY:
        return [expr.a]
    if name == "Cast":
        return [expr.value]
    if name == "Select":
        return [expr.condition, expr.true_value, expr.false_value]
    if name == "Let":
        return [expr.value, expr.body]
    if compat.is_load(expr):
        return list(expr.indices)
    if name == "Call":
        return list(expr.args)
    return []


def rebuild(expr: Expr, old: list[Expr], new: list[Expr]) -> Expr:
    """``expr`` with its children ``old`` replaced by ``new``; the same object where nothing changed."""
    if all(after.same_as(before) for after, before in zip(new, old, strict=True)):
        return expr
    name = compat.kind(expr)
    if name in compat.BINARY or name in _UNARY or name == "Select":
        return type(expr)(*new)
    if name == "Cast":
        return tir.Cast(dtype_of(expr), *new)
    if compat.is_load(expr):
        return compat.load(compat.load_buffer(expr), new)
    if name == "Call":
        return compat.remake_call(expr, new)
    raise TypeError(f"cannot rebuild {name}")
