# SPDX-License-Identifier: Apache-2.0
"""ComputedWeights: weights, masks and tables that a model computes from constants alone become constants."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import numpy as np
import tvm
from tvm import relax

from ...cost.choices import Choices
from ...support.module_pass import module_pass
from ..rewriting.functions import own_functions
from ..rewriting.operators import PRODUCTS, operator_name
from ..rewriting.rules import CALL, Match, Rule, apply_rules
from ..rewriting.views import bytes_of, shape_of

_FILLED = {
    f"relax.{name}{like}": number
    for name, number in (("full", None), ("ones", 1), ("zeros", 0))
    for like in ("", "_like")
}
"""Operators that fill a tensor, each with its number. None: the number is a constant argument behind the shape."""
_FUNCTION = "computed_weights"
"""The function that computes the weights of another function, in a module of its own."""
Values = Mapping[relax.Var, relax.Expr]
"""The values of variables."""


@module_pass
class ComputedWeights:
    """Compute at compile time the values that depend on constants alone and that other values read.

    These are operands of matmuls and convolutions: normalized weights (weight norm, standardized convolutions), and
    weights that are scaled, generated, or merged with an adapter. Layouts of convolutions are chosen before
    ``FoldConstants``, and only for constants.

    The others are masks and tables of positions, up to a size. ``FoldConstants`` computes no filled tensor, and
    nothing that depends on one. Tensors of one value stay computed, because a kernel needs no memory for them. The
    pass runs behind those that look for quantized weights.

    Args:
        passes: turn operators into constants: a legalization, and constant folding.
        choices: the device's constants of choice.
    """

    def __init__(self, passes: Sequence[Any], choices: Choices):
        self.choices = choices
        self.passes = tvm.transform.Sequential([relax.transform.Normalize(), *passes])

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Compute the constants in each of the module's own functions."""
        known: dict[relax.Var, relax.Expr] = {}
        for _, func in own_functions(mod):
            values = relax.analysis.get_var2val(func)
            constants = _constants(values)
            if not constants:
                continue
            weights = _weights(values, constants, self.choices)
            others = [var for var in _tables(func, values, constants, self.choices) if var not in weights]
            if weights or others:
                computed = self._computed(mod, [*weights, *others], constants)
                known |= {var: to for var, to in computed.items() if var in weights or _differs(to)}
        if not known:
            return mod
        rule = Rule(
            "it is the same at every call", lambda match: _of(match, known), (CALL,), leaves_unused=True
        )
        return apply_rules(mod, [rule])

    def _computed(
        self, mod: tvm.IRModule, weights: Sequence[relax.Var], constants: Values
    ) -> dict[relax.Var, relax.Expr]:
        """Return the constants that weights equal, without those that the passes leave computed."""
        bindings = [
            relax.VarBinding(var, _whole(var, constants[var], self.choices))
            for var in _needed(weights, constants)
        ]
        result = relax.Var("weights", relax.TupleType([var.ty for var in weights]))
        block = relax.DataflowBlock([*bindings, relax.VarBinding(result, relax.Tuple(list(weights)))])
        function = relax.Function([], relax.SeqExpr([block], result), result.ty)
        alone = mod.clone()
        for gvar, _func in own_functions(mod):
            del alone[gvar]
        alone[_FUNCTION] = relax.utils.copy_with_new_vars(function).with_attr("global_symbol", _FUNCTION)
        folded = self.passes(alone)[_FUNCTION]
        values = relax.analysis.get_var2val(folded)
        results = [values.get(field, field) for field in values[folded.body.body].fields]
        return {
            var: to for var, to in zip(weights, results, strict=True) if isinstance(to, tvm.ir.GenericConst)
        }


def _constants(values: Values) -> dict[relax.Var, relax.Expr]:
    """Return the values that depend on constants alone, by variable, each behind the values that it reads."""
    constants: dict[relax.Var, relax.Expr] = {}
    for var, value in values.items():
        if _is_constant(value, constants):
            constants[var] = value
    return constants


def _is_constant(value: relax.Expr, constants: Container[relax.Var]) -> bool:
    """Return whether a value depends only on constants and on the variables in ``constants``."""
    if isinstance(value, relax.Var):
        return value in constants
    if isinstance(value, relax.TupleGetItem):
        return _is_constant(value.tuple_value, constants)
    if isinstance(value, relax.Tuple):
        return all(_is_constant(field, constants) for field in value.fields)
    if isinstance(value, relax.Call):
        # Most calls have a variable as the first operand, and asking TVM about an operator takes longer.
        return all(_is_constant(arg, constants) for arg in value.args) and _is_computed(value.op)
    if isinstance(value, relax.ShapeExpr):
        return all(isinstance(extent, tvm.tirx.IntImm) for extent in value.values)
    return isinstance(value, (tvm.ir.GenericConst, tvm.tirx.IntImm, tvm.tirx.FloatImm))


def _is_computed(op: relax.Expr) -> bool:
    """Return whether TVM legalizes an operator. Such operators give the same result whenever they are computed."""
    return isinstance(op, tvm.ir.Op) and op.get_attr("FLegalize") is not None


def _weights(values: Values, constants: Container[relax.Var], choices: Choices) -> list[relax.Var]:
    """Return the variables among constants that products of other values read, up to the largest constant allowed."""
    products = (
        value for var, value in values.items() if operator_name(value) in PRODUCTS and var not in constants
    )
    read = dict.fromkeys(arg for call in products for arg in call.args if isinstance(arg, relax.Var))
    return [var for var in read if var in constants and bytes_of(var) <= choices.largest_filled_weight]


def _tables(
    func: relax.Function,
    values: Values,
    constants: Container[relax.Var],
    choices: Choices,
) -> list[relax.Var]:
    """Return the small tensors among constants that depend on filled tensors and that other values read."""
    filled = _filled(values, constants)
    readers = [var for var in values if var not in constants]
    read = dict.fromkeys(arg for var in readers for arg in relax.analysis.free_vars(values[var]))
    return [var for var in read if var in filled and 0 < bytes_of(var) <= choices.largest_table]


def _filled(values: Values, constants: Container[relax.Var]) -> set[relax.Var]:
    """Return the variables of values that depend on constants, and on a tensor filled with a number."""
    filled: set[relax.Var] = set()
    for var, value in values.items():
        if var in constants and (_fills(value) or not filled.isdisjoint(relax.analysis.free_vars(value))):
            filled.add(var)
    return filled


def _fills(value: relax.Expr) -> bool:
    return operator_name(value) in _FILLED


def _whole(var: relax.Var, value: relax.Expr, choices: Choices) -> Any:
    """Return a value, or the constant that a filled tensor equals, because TVM folds no call that fills a tensor."""
    name = operator_name(value)
    if name not in _FILLED or bytes_of(var) > choices.largest_table:
        return value
    number = _FILLED[name]
    if number is None:
        if not isinstance(value.args[1], tvm.ir.GenericConst):
            return value
        number = value.args[1].value.numpy().item()
    dtype = str(var.ty.dtype)
    return relax.const(np.full(shape_of(var) or (), number, dtype), dtype)


def _differs(value: relax.Expr) -> bool:
    """Return whether the elements of a constant differ."""
    array = value.value.numpy()
    return bool((array != array.reshape(-1)[0]).any())


def _needed(weights: Sequence[relax.Var], constants: Values) -> list[relax.Var]:
    """Return the variables that weights depend on, with the weights, each behind the variables that it reads."""
    needed = set(weights)
    for var in reversed(constants):
        if var in needed:
            needed.update(relax.analysis.free_vars(constants[var]))
    return [var for var in constants if var in needed]


def _of(match: Match, known: Values) -> relax.Expr | None:
    """Return a call with constants in place of its known operands, or None if no operand is known."""
    call, operands = match.value, match.before.args
    if not any(arg in known for arg in operands if isinstance(arg, relax.Var)):
        return None
    pairs = zip(operands, call.args, strict=True)
    args = [known.get(arg, now) if isinstance(arg, relax.Var) else now for arg, now in pairs]
    return relax.Call(call.op, args, call.attrs, call.ty_args, call.span)
