# SPDX-License-Identifier: Apache-2.0
"""Give operands of element-wise operators as many axes as the result."""

from __future__ import annotations

import tvm
from tvm import relax

from ..rewriting.calls import with_calls
from ..rewriting.operators import BROADCASTING
from ..rewriting.views import shape_of


def full_rank_operands(mod: tvm.IRModule) -> tvm.IRModule:
    """Give broadcast operands leading axes of extent 1, except scalars.

    If the operands of an operator differ in rank, TVM's ``ConvertLayout`` keeps the operator's layout, and transposes
    before and behind it.
    """
    return with_calls(
        mod, BROADCASTING, _with_full_ranks, why="TVM converts the layout of operands of equal rank only"
    )


def _with_full_ranks(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    shape = shape_of(call)
    if shape is None:
        return call
    args = [_widened(builder, arg, len(shape)) for arg in call.args]
    if all(new is old for new, old in zip(args, call.args)):
        return call
    return relax.Call(call.op, args, call.attrs, call.ty_args)


def _widened(builder: relax.BlockBuilder, operand: relax.Expr, rank: int) -> relax.Expr:
    own = shape_of(operand)
    if not own or len(own) == rank:
        return operand
    if isinstance(operand, tvm.ir.GenericConst):
        array = operand.value.numpy()
        return relax.const(array.reshape((1,) * (rank - len(own)) + array.shape), operand.ty.dtype)
    return builder.emit(relax.op.expand_dims(operand, list(range(rank - len(own)))))
