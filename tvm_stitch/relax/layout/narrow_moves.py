# SPDX-License-Identifier: Apache-2.0
"""NarrowMoves: round elements to a narrower type before they are moved, and widen them behind.

A half model rounds the float32 result of a norm in front of the next matmul. The result may be divided into windows or
transposed before it is rounded. Then the kernel of the norm stores wide elements, and another kernel rounds them.
Elements that are rounded first are stored once, and the matmul reads them through the transposition. Wide elements
that are moved and read by several kernels would be stored, while each reader can widen narrow ones as it loads them.
"""

from __future__ import annotations

import tvm
from tvm import relax

from ...graph.dtype import item_bytes
from ...support.module_pass import module_pass
from ..rewriting.movement import PERMUTE, moved, moved_again
from ..rewriting.operators import PRODUCTS, operator_name
from ..rewriting.readers import reader_name
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import RESHAPES

MOVES = (*RESHAPES, PERMUTE)
CAST = "relax.astype"


@module_pass
class NarrowMoves:
    """Rewrite ``astype(permute_dims(x))`` as ``permute_dims(astype(x))``, and reshapes alike.

    The cast's type is narrower than that of ``x``, and nothing else reads what is moved. A cast to a wider type in
    front of the moves is sunk behind them instead. The condition is that moves alone read it, and that no product reads
    what is moved: products read transposed operands. Runs before ``LegalizeOps``.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        why = "fewer bytes are moved"
        rules = [
            Rule(why, _narrowed, (CAST,), needs=(MOVES,), when=_narrows, leaves_unused=True),
            Rule(why, _widened, MOVES, needs=((CAST,),), leaves_unused=True),
        ]
        return apply_rules(mod, rules, unique_names=True)


def _narrows(call: relax.Expr) -> bool:
    return item_bytes(str(call.ty.dtype)) < item_bytes(str(call.args[0].ty.dtype))


def _narrowed(match: Match) -> relax.Expr | None:
    """Return the moves of a narrow value in place of the cast of a moved one, or None."""
    call = match.value
    if not isinstance(match.block, relax.DataflowBlock) or not _narrows(match.before):
        return None
    value = match.before.args[0]
    while operator_name(match.values.get(value)) in MOVES:
        if not isinstance(value, relax.DataflowVar) or len(match.readers.get(value, ())) != 1:
            return None
        value = match.values[value].args[0]
    source, moves = moved(match, call.args[0], MOVES)
    if not moves:
        return None
    narrow = match.emit(relax.Call(call.op, [source], call.attrs, call.ty_args))
    return moved_again(match, narrow, moves)


def _widened(match: Match) -> relax.Expr | None:
    """Return the cast of a moved narrow value in place of the moves of a wide one, or None."""
    call = match.value
    cast = match.definition(call.args[0])
    if not isinstance(match.block, relax.DataflowBlock) or cast is None or operator_name(cast) != CAST:
        return None
    before, after = (item_bytes(str(value.ty.dtype)) for value in (cast.args[0], cast))
    if before >= after:
        return None
    if not all(reader_name(reader) in MOVES for reader in match.readers.get(match.before.args[0], [None])):
        return None
    if any(reader_name(reader) in PRODUCTS for reader in match.readers.get(match.var, ())):
        return None
    moves = relax.Call(call.op, [cast.args[0], *call.args[1:]], call.attrs, call.ty_args)
    return relax.Call(cast.op, [match.emit(moves)], cast.attrs, cast.ty_args)
