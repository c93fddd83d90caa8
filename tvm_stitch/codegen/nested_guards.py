# SPDX-License-Identifier: Apache-2.0
"""Guards within guards, kept from a fault of index simplification.

Under two lower bounds of one index, the inner one stricter (``24 <= i``, then ``32 <= i``), the simplifier of iteration
maps of a TVM with Relay takes ``i - 24`` for ``i - 32`` when it flattens buffers. It leaves indices alone under a
condition that is no comparison, so inner conditions are hidden from it. Concats of concats have such.
"""

from __future__ import annotations

from typing import Any

from .. import compat
from ..compat import Expr, tir


def hidden_inner_guards(func: Any) -> Any:
    """The scheduled PrimFunc, with the conditions of guards within guards marked ``likely``.

    A guard is an ``if_then_else`` or a conditional statement; mere upper bounds (the tail of a loop) do no harm. TVM
    drops the marks after it has flattened buffers.
    """
    if compat.HAS_RELAX_TIRX:  # its simplifier is right
        return func
    depth = 0

    def enter(node: Any) -> None:
        nonlocal depth
        depth += _is_guard(node)

    def leave(node: Any) -> Any:
        nonlocal depth
        if not _is_guard(node):
            return None
        depth -= 1
        if not depth:
            return None
        if compat.kind(node) == "Call":
            return compat.remake_call(node, [tir.likely(node.args[0]), *node.args[1:]])
        # Twice: of a statement's condition TVM looks behind one mark.
        hidden = tir.likely(tir.likely(node.condition))
        return tir.IfThenElse(hidden, node.then_case, node.else_case)

    return func.with_body(
        tir.stmt_functor.ir_transform(func.body, enter, leave, ["tir.Call", "tir.IfThenElse"])
    )


def _is_guard(node: Any) -> bool:
    if compat.kind(node) == "IfThenElse":
        return not _is_upper_bound(node.condition)
    return compat.call_name(node) == "if_then_else" and not _is_upper_bound(node.args[0])


def _is_upper_bound(condition: Expr) -> bool:
    return compat.kind(condition) in ("LT", "LE") and compat.int_value(condition.b) is not None
