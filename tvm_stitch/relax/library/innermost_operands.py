# SPDX-License-Identifier: Apache-2.0
"""Permute matmul operands that a library cannot read as they lie, with their innermost axis kept.

A library reads a transposed side as fast as any other. A permutation that must be written for it may move the
innermost axis, for example if heads are split and keys transposed in one. Then only the other axes are moved in
memory: lines are copied as they are, and no tile is transposed.
"""

from __future__ import annotations

import tvm
from tvm import relax

from ...graph.extent import same
from ..rewriting.functions import own_functions
from ..rewriting.movement import PERMUTE
from ..rewriting.operators import operator_name
from ..rewriting.readers import only_reader_inside, readers_of
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import VIEWS, permutation, shape_of
from .plan import is_product


def with_innermost_axes_kept(mod: tvm.IRModule) -> tvm.IRModule:
    """Split permutations of operands into two: the first keeps the innermost axis, the second transposes matrices.

    ``matmul(x, permute_dims(y, [0, 2, 3, 1]))`` becomes ``matmul(x, permute_dims(permute_dims(y, [0, 2, 1, 3]), [0,
    1, 3, 2]))``, if nothing else reads the permutation, directly or through views that keep the matrices. The other
    operand has a matrix for each of the batch. One matrix for all would be multiplied by few rows at a time.
    """
    orders: dict[relax.Var, list[int]] = {}
    for _, func in own_functions(mod):
        orders |= _found(func)
    why = "lines are copied as they are"
    rule = Rule(why, lambda match: _twice(match, orders[match.var]), variables=orders, leaves_unused=True)
    return apply_rules(mod, [rule])


def _found(func: relax.Function) -> dict[relax.Var, list[int]]:
    """Return the order in which each operand is to lie in memory, by the variable of its permutation."""
    values, readers = dict(relax.analysis.get_var2val(func).items()), readers_of(func)
    permuted: dict[relax.Var, list[int]] = {}
    for call in values.values():
        if not is_product(call):
            continue
        for operand, other in zip(call.args, call.args[::-1], strict=True):
            if _is_shared(other):
                continue
            var = operand
            while (
                only_reader_inside(readers, var) is not None and (read := _read(values.get(var))) is not None
            ):
                var = read
            order = _kept(values.get(var)) if only_reader_inside(readers, var) is not None else None
            if order is not None:
                permuted[var] = order
    return permuted


def _is_shared(operand: relax.Expr) -> bool:
    """Return whether an operand is one matrix for all batches, such as a weight."""
    return isinstance(operand, tvm.ir.GenericConst) or len(shape_of(operand) or ()) <= 2


def _read(value: relax.Expr) -> relax.Expr | None:
    """Return the operand of a view that keeps the matrices, or None for anything else."""
    if operator_name(value) not in VIEWS or operator_name(value) == PERMUTE:
        return None
    own, read = shape_of(value), shape_of(value.args[0])
    if own is None or read is None or min(len(own), len(read)) < 2:
        return None
    return value.args[0] if all(same(a, b) for a, b in zip(own[-2:], read[-2:], strict=True)) else None


def _kept(value: relax.Expr) -> list[int] | None:
    """Return an order with its last two axes exchanged, if this keeps the innermost axis but moves others."""
    shape = shape_of(value) if operator_name(value) == PERMUTE else None
    if shape is None or len(shape) < 3:
        return None
    *outer, row, column = permutation(value, len(shape))
    last = len(shape) - 1
    return [*outer, column, row] if row == last and [*outer, column] != list(range(last)) else None


def _twice(match: Match, order: list[int]) -> relax.Expr:
    """Return a permutation as two, the first one in an order that keeps the innermost axis."""
    kept = match.emit(relax.op.permute_dims(match.value.args[0], order))
    *outer, row, column = range(len(order))
    return relax.op.permute_dims(kept, [*outer, column, row])
