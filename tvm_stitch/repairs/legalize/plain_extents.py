# SPDX-License-Identifier: Apache-2.0
"""PlainExtents: write extents with operators that TVM's passes over Relax know.

A choice becomes a ``Select``, a shift by a number becomes a product or a quotient, and a mask of low bits becomes a
remainder. A choice stays if one of its sides divides by a symbol, because a ``Select`` computes both sides.

Fault: TVM's passes copy the extents of tensors with a visitor of Relax expressions. It raises for a call, such as
    ``if_then_else``, and for shifts and bitwise operators. ``FuseOps`` fails on every group with such an extent.
Seen in: TVM 0.27.0
Input: ``R.divide(R.exp(R.full((4, if_then_else(n > 3, n // 2, n)), 0.5)), 2)``
Upstream: none known
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from ... import compat
from ...compat import Expr
from ...relax.rewriting.functions import with_own_functions
from ...support.module_pass import module_pass

_CHOICE = "prim.if_then_else"
_NODES = (tvm.ir.Call, tirx.LShift, tirx.RShift, tirx.BitwiseAnd)


@module_pass
class PlainExtents:
    """Rewrite the extents of all tensors and shapes in a module's Relax functions. Runs before all operators are
    looked at.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rewrite every Relax function that has symbolic extents."""
        return with_own_functions(mod, _plain)


def _plain(func: Any) -> Any:
    if not relax.analysis.defined_symbolic_vars(func):
        return func
    return tvm_ffi.structural_map(func, (_NODES, _rewritten), order="post")


def _rewritten(node: Any) -> Any:
    name = compat.kind(node)
    if name == "Call":
        if not isinstance(node.op, tvm.ir.Op) or str(node.op.name) != _CHOICE:
            return node
        condition, first, second = node.args
        return node if _may_trap(first) or _may_trap(second) else tirx.Select(condition, first, second)
    number = compat.int_value(node.b)
    if number is None:
        return node
    if name == "BitwiseAnd":
        is_mask = number > 0 and number & (number + 1) == 0
        return tirx.floormod(node.a, compat.const(number + 1, compat.dtype_of(node))) if is_mask else node
    if not 0 <= number < 32:
        return node
    power = compat.const(1 << number, compat.dtype_of(node))
    return node.a * power if name == "LShift" else tirx.floordiv(node.a, power)


def _may_trap(expr: Expr) -> bool:
    """Return True if an expression divides by anything but a number."""
    divisions = ("FloorDiv", "FloorMod", "Div", "Mod")
    return any(compat.kind(part) in divisions and not compat.int_value(part.b) for part in compat.parts(expr))
