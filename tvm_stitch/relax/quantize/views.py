# SPDX-License-Identifier: Apache-2.0
"""QuantizedViews: move quantized elements, instead of dequantizing them, moving floats and quantizing again.

A model of quantizing and dequantizing pairs has one around every operator: ``quantize(reshape(dequantize(q)))``.
"""

from __future__ import annotations

import tvm
from tvm import relax

from ...support.module_pass import module_pass
from ..rewriting.movement import MOVES, moved, moved_again
from ..rewriting.operators import operator_name
from ..rewriting.rules import Match, Rule, apply_rules
from .parameters import DEQUANTIZE, QUANTIZE, is_per_tensor, undo_each_other


@module_pass
class QuantizedViews:
    """Rewrite ``quantize(move(dequantize(q)))`` of one constant scale and zero point as ``move(q)``, which is exact.

    A pair without an operator between its halves is dropped. Runs before ``LegalizeOps``.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return apply_rules(mod, [RULE], unique_names=True)


def _quantized_moved(match: Match) -> relax.Expr | None:
    if not isinstance(match.block, relax.DataflowBlock):
        return None
    source, moves = moved(match, match.value.args[0], MOVES)
    call = match.definition(source)
    if call is None or operator_name(call) != DEQUANTIZE or not is_per_tensor(call):
        return None
    if not undo_each_other(call, match.value):
        return None
    return moved_again(match, call.args[0], moves)


RULE = Rule(
    "bytes are moved, not floats", _quantized_moved, (QUANTIZE,), needs=[(DEQUANTIZE,)], leaves_unused=True
)
