# SPDX-License-Identifier: Apache-2.0
"""RaisedCalls: turn functions that an importer made of operators back into those operators.

Networks for small devices have such clips everywhere, as ReLU6 and hard-swish.

Fault: TVM's ONNX importer writes ``Clip`` as calls of PrimFuncs (``call_tir(maximum, x, bound)``). Layouts and
    transpositions do not go through them, so a network is transposed around each.
Seen in: TVM 0.27.0
Input: ONNX ``Clip`` of a float32 tensor with constant bounds
Upstream: none known
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, tirx

from ... import compat
from ...relax.rewriting.calls import with_calls
from ...support.module_pass import module_pass
from ...support.one_at_a_time import exclusively

RAISED: dict[str, Callable[..., Any]] = {"maximum": relax.op.maximum, "minimum": relax.op.minimum}
"""By function name, the operator that the function may be."""


@module_pass
class RaisedCalls:
    """Replace calls of functions that equal TVM's legalization of an operator.

    The pass runs before passes that look for operators.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rewrite the Relax functions of a module that has such functions."""
        functions = {gvar: func for gvar, func in mod.functions_items() if _name(gvar) in RAISED}
        if not functions:
            return mod
        known: dict[Any, bool] = {}

        def raised(_builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
            if call.args[0] not in functions or len(call.args) != 2:
                return call
            gvar, args = call.args[0], list(call.args[1])
            operator = RAISED[_name(gvar)]
            if gvar not in known:
                known[gvar] = _is_of(operator, functions[gvar], [arg.ty for arg in args])
            return operator(*args) if known[gvar] else call

        return with_calls(mod, ("relax.call_tir",), raised, why="passes know the operator, not the function")


def _name(gvar: tvm.ir.GlobalVar) -> str:
    """Return a function's name without the number that makes it unique."""
    return str(gvar.name_hint).rstrip("0123456789_")


def _legalized(operator: Callable[..., Any], types: list[Any]) -> Any:
    """Return TVM's legalization of an operator for these operand types, or None if TVM makes another call of it."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", ty) for i, ty in enumerate(types)]
    with builder.function("main", params):
        builder.emit_func_output(builder.emit(operator(*params)))
    legalized = exclusively([relax.transform.LegalizeOps()], "LegalizeRaised")(builder.get())
    (func,) = [f for g, f in legalized.functions_items() if g.name_hint != "main"] or [None]
    return func


def _is_of(operator: Callable[..., Any], func: tirx.PrimFunc, types: list[Any]) -> bool:
    """Return True if a function is TVM's legalization of an operator of two tensors of one dtype."""
    if len(types) != 2 or not all(isinstance(ty, relax.TensorType) and ty.shape is not None for ty in types):
        return False
    if types[0].dtype != types[1].dtype:
        return False
    return compat.structural_equal(func, _legalized(operator, types))
