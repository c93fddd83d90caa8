# SPDX-License-Identifier: Apache-2.0
"""DropCopies: drop operators that return their operand, and broadcasts of a matmul's operand to batches.

PyTorch decomposes matmuls of more than two axes to ones with both operands expanded to the same batches. Templates do
not take a weight that is copied for each batch, and a matmul broadcasts by itself.
"""

from __future__ import annotations

import tvm
from tvm import relax

from ...graph.extent import is_number
from ...support.module_pass import module_pass
from ..rewriting.movement import COPIES, moves_nothing, same_extents
from ..rewriting.operators import operator_name
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import RESHAPES, shape_of


@module_pass
class DropCopies:
    """Drop calls that change nothing, or only what a matmul does anyway. A function's results stay its own."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return apply_rules(mod, RULES)


def _operand(match: Match) -> relax.Expr | None:
    return match.value.args[0] if match.is_inside and moves_nothing(match.value) else None


def _broadcasting(match: Match) -> relax.Expr | None:
    """Return the matmul of the operands before their broadcasts, if its shape stays, else None."""
    call = match.value
    for position in (1, 0):
        source = _matrix(match, call.args[position])
        if source is None:
            continue
        args = list(call.args)
        args[position] = source
        product = match.builder.normalize(relax.op.matmul(*args, out_dtype=call.attrs.out_dtype))
        if same_extents(shape_of(product), shape_of(call)):
            call = product
    return None if call is match.value else call


def _matrix(match: Match, operand: relax.Expr) -> relax.Expr | None:
    """Return the one matrix that an operand broadcasts, or None if it broadcasts several, or is not a broadcast.

    Behind the broadcast, batches may be joined or divided, and elements cast. A cast is then one of the matrix.
    """
    casts: list[relax.Call] = []
    while True:
        definition = match.definition(operand) if isinstance(operand, relax.Var) else operand
        name = operator_name(definition)
        if definition is None or name not in ("relax.broadcast_to", "relax.astype", *RESHAPES):
            return None
        before, after = shape_of(definition.args[0]), shape_of(definition)
        if before is None or after is None or len(before) < 2 or not same_extents(before[-2:], after[-2:]):
            return None
        operand = definition.args[0]
        if name == "relax.astype":
            casts.append(definition)
        elif name == "relax.broadcast_to" and all(is_number(extent, 1) for extent in before[:-2]):
            break
    for cast in reversed(casts):
        operand = match.emit(relax.Call(cast.op, [operand], cast.attrs, cast.ty_args))
    return operand


RULES = (
    Rule("a value is not copied", _operand, COPIES, when=moves_nothing),
    Rule("a product broadcasts by itself", _broadcasting, ("relax.matmul",), needs=[("relax.broadcast_to",)]),
)
