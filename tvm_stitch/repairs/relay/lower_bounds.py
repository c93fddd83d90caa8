# SPDX-License-Identifier: Apache-2.0
"""Hide the lower bounds of guards from TVM's index simplification.

When TVM flattens buffers, its simplifier moves the origin of a sum of loop variables to the lower bound that a guard
states. It reads bounds from comparisons only. So conditions that state a lower bound are marked ``likely``, and TVM
simplifies the indices behind them without the bound.

Fault: TVM's simplifier moves the origin of a sum to a guard's lower bound even if that is below the least value of
    the sum. Indices are then wrong by the difference.
Seen in: TVM 0.17.dev0
Input: ``if_then_else(1 <= at[0] * 8 + i * 4 + j, x[at[0] * 8 + i * 4 + j - 1], -1)``, target llvm
Upstream: none known
"""

from __future__ import annotations

from typing import Any

from ...compat import expressions as ir
from ...compat.expressions import Expr, tir


def hidden_lower_bounds(func: Any) -> Any:
    """Return the scheduled PrimFunc, with the conditions of guards that state a lower bound marked ``likely``.

    A guard is an ``if_then_else`` or a conditional statement. Mere upper bounds, as in the tail of a loop, do no
    harm. TVM drops the marks after it has flattened buffers.
    """
    body = tir.stmt_functor.ir_transform(func.body, None, _hidden, ["tir.Call", "tir.IfThenElse"])
    return func.with_body(body)


def _hidden(node: Any) -> Any:
    """Return the guard with its condition marked, or None if the node stays as it is."""
    if ir.kind(node) == "IfThenElse":
        if not _bounds_below(node.condition):
            return None
        # Twice: TVM looks behind one mark of a statement's condition.
        hidden = tir.likely(tir.likely(node.condition))
        return tir.IfThenElse(hidden, node.then_case, node.else_case)
    if ir.call_name(node) != "if_then_else" or not _bounds_below(node.args[0]):
        return None
    return ir.remake_call(node, [tir.likely(node.args[0]), *node.args[1:]])


def _bounds_below(condition: Expr) -> bool:
    """Return True if the simplifier may read a lower bound from a condition. It reads them from comparisons only."""
    name = ir.kind(condition)
    if name == "And":
        return _bounds_below(condition.a) or _bounds_below(condition.b)
    if name in ("LT", "LE"):
        return ir.int_value(condition.b) is None
    return name in ("GT", "GE") and ir.int_value(condition.a) is None
