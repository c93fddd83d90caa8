# SPDX-License-Identifier: Apache-2.0
"""Give operands of element-wise operators as many axes as the result, and put the one that has its layout first."""

from __future__ import annotations

import tvm
from tvm import relax

from ..rewriting.calls import with_calls
from ..rewriting.movement import same_extents
from ..rewriting.operators import BROADCASTING, operator_name
from ..rewriting.views import shape_of

COMMUTATIVE = ("relax.add", "relax.multiply")


def full_rank_operands(mod: tvm.IRModule) -> tvm.IRModule:
    """Give broadcast operands leading axes of extent 1, except scalars.

    If the operands of an operator differ in rank, TVM's ``ConvertLayout`` keeps the operator's layout, and transposes
    before and behind it. Constants of one element become scalars. A constant is the second operand of a sum and of a
    product, because the result gets the layout of the first one.
    """
    return with_calls(
        mod, BROADCASTING, _with_full_ranks, why="TVM converts the layout of operands of equal rank only"
    )


def _with_full_ranks(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    shape = shape_of(call)
    if shape is None:
        return call
    args = [_widened(builder, arg, len(shape)) for arg in call.args]
    whole = [same_extents(shape_of(arg), shape) for arg in call.args]
    if any(whole):
        args = [arg if each else _as_scalar(arg) for arg, each in zip(args, whole)]
    if operator_name(call) in COMMUTATIVE and isinstance(args[0], tvm.ir.GenericConst) and whole[1]:
        args.reverse()
    if all(new is old for new, old in zip(args, call.args)):
        return call
    return relax.Call(call.op, args, call.attrs, call.ty_args)


def _as_scalar(operand: relax.Expr) -> relax.Expr:
    """Return a constant of one element as a scalar, and other operands as they are."""
    if not isinstance(operand, tvm.ir.GenericConst) or not shape_of(operand):
        return operand
    array = operand.value.numpy()
    return relax.const(array.reshape(()), operand.ty.dtype) if array.size == 1 else operand


def _widened(builder: relax.BlockBuilder, operand: relax.Expr, rank: int) -> relax.Expr:
    own = shape_of(operand)
    if not own or len(own) == rank:
        return operand
    if isinstance(operand, tvm.ir.GenericConst):
        array = operand.value.numpy()
        return relax.const(array.reshape((1,) * (rank - len(own)) + array.shape), operand.ty.dtype)
    return builder.emit(relax.op.expand_dims(operand, list(range(rank - len(own)))))
