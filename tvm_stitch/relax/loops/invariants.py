# SPDX-License-Identifier: Apache-2.0
"""Move the operators of a step that read unchanging values alone in front of the loop."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.utils import copy_with_new_vars

from ..rewriting.operators import operator_name

_OF_THEIR_OWN = ("relax.builtin.alloc_tensor", "relax.call_tir_inplace")
"""Operators whose every call makes or changes memory."""


def hoisted(func: relax.Function, unchanging: int) -> tuple[relax.Function | None, relax.Function]:
    """Return a function of the operators that leave a step, or None if there are none, and the rest of the step.

    The function takes the step's shape argument without the number of the step, and the unchanging values. It returns
    a tuple. The step gets these results as parameters behind the unchanging values.

    Args:
        func: the step, a function of a shape, the unchanging values and the states, with one block.
        unchanging: the number of unchanging values.
    """
    at, values, states = func.params[0], func.params[1 : 1 + unchanging], func.params[1 + unchanging :]
    number, *symbols = at.ty.values
    (block,) = func.body.blocks
    known = set(values)
    moved, rest = [], []
    for binding in block.bindings:
        if isinstance(binding, relax.VarBinding) and _is_fixed(binding.value, known, number):
            known.add(binding.var)
            moved.append(binding)
        else:
            rest.append(binding)
    made = [b.var for b in moved]
    read = {v for b in rest for v in _variables(b.value)}
    results = [var for var in made if var in read]
    if not results or not all(isinstance(var.ty, relax.TensorType) for var in results):
        return None, func
    whole = relax.Tuple(results)
    out = relax.Var("fixed", tvm.ir.TupleType([var.ty for var in results]))
    body = relax.SeqExpr([relax.DataflowBlock([*moved, relax.VarBinding(out, whole)])], out)
    sizes = relax.Var("at", relax.ShapeType(symbols))
    before = relax.Function([sizes, *values], body, out.ty, True)
    params = [relax.Var(var.name, var.ty) for var in results]
    aliases = [relax.VarBinding(var, param) for var, param in zip(results, params, strict=True)]
    left = relax.SeqExpr([relax.DataflowBlock([*aliases, *rest])], func.body.body)
    made_step = relax.Function([at, *values, *params, *states], left, func.ret_ty, True)
    return copy_with_new_vars(before), copy_with_new_vars(made_step)


def _is_fixed(value: Any, known: set[Any], number: Any) -> bool:
    """Return True if a value reads known values, at least one, and not the number of the step."""
    if isinstance(value, relax.TupleGetItem):
        return value.tuple_value in known
    if not isinstance(value, relax.Call) or operator_name(value) in _OF_THEIR_OWN:
        return False
    read = _variables(value)
    return bool(read) and read <= known and all(_lacks(arg, number) for arg in value.args)


def _variables(value: Any) -> set[Any]:
    """Return the tensors and tuples that an expression reads."""
    if isinstance(value, relax.Var):
        return {value} if isinstance(value.ty, (relax.TensorType, tvm.ir.TupleType)) else set()
    if isinstance(value, relax.TupleGetItem):
        return _variables(value.tuple_value)
    parts = (
        value.fields
        if isinstance(value, relax.Tuple)
        else value.args
        if isinstance(value, relax.Call)
        else ()
    )
    return {var for part in parts for var in _variables(part)}


def _lacks(arg: Any, number: Any) -> bool:
    """Return True if an argument does not use the number of the step."""
    if isinstance(arg, relax.Tuple):
        return all(_lacks(field, number) for field in arg.fields)
    values = arg.values if isinstance(arg, relax.ShapeExpr) else [arg] if tvm.ir.is_prim_expr(arg) else []
    return all(not number.same_as(var) for value in values for var in tirx.analysis.undefined_vars(value))
