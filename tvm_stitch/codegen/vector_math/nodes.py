# SPDX-License-Identifier: Apache-2.0
"""The children of a scalar expression, and the same expression with other children."""

from __future__ import annotations

import tvm
from tvm import tirx

from tvm_stitch.codegen.vector_math.scope import Expr, dtype_of

_prim = tvm.ir.prim.expr
_BINARY = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max),
    *(tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or),
    *(_prim.BitwiseAnd, _prim.BitwiseOr, _prim.BitwiseXor, _prim.LShift, _prim.RShift),
)
_UNARY = (tirx.Not, _prim.BitwiseNot)
_LEAVES = (tirx.Var, tirx.IntImm, tirx.FloatImm, tvm.ir.StringImm)


def is_known(expr: Expr) -> bool:
    """Whether ``children`` sees all of the expression."""
    inner = (*_BINARY, *_UNARY, tirx.Cast, tirx.Select, tirx.Let, tvm.ir.Call, tvm.ir.TensorLoad)
    return isinstance(expr, _LEAVES) or isinstance(expr, inner)


def children(expr: Expr) -> list[Expr]:
    """Sub-expressions in order; none for leaves and for nodes with a body of their own (a Reduce)."""
    if isinstance(expr, _BINARY):
        return [expr.a, expr.b]
    if isinstance(expr, _UNARY):
        return [expr.a]
    if isinstance(expr, tirx.Cast):
        return [expr.value]
    if isinstance(expr, tirx.Select):
        return [expr.condition, expr.true_value, expr.false_value]
    if isinstance(expr, tirx.Let):
        return [expr.value, expr.body]
    if isinstance(expr, tvm.ir.TensorLoad):
        return list(expr.indices)
    if isinstance(expr, tvm.ir.Call):
        return list(expr.args)
    return []


def rebuild(expr: Expr, old: list[Expr], new: list[Expr]) -> Expr:
    """``expr`` with its children ``old`` replaced by ``new``; the same object where nothing changed."""
    if all(after.same_as(before) for after, before in zip(new, old, strict=True)):
        return expr
    if isinstance(expr, (*_BINARY, *_UNARY, tirx.Select)):
        return type(expr)(*new)
    if isinstance(expr, tirx.Cast):
        return tirx.Cast(dtype_of(expr), *new)
    if isinstance(expr, tvm.ir.TensorLoad):
        return tirx.BufferLoad(expr.source, new)
    if isinstance(expr, tvm.ir.Call):
        return tvm.ir.Call(expr.op, new, expr.attrs, ret_ty=expr.ty)
    raise TypeError(f"cannot rebuild {type(expr).__name__}")
