# SPDX-License-Identifier: Apache-2.0
"""Evaluate calls of constants on this machine, with one library for all their functions.

TVM's ``FoldConstant`` builds a library for each call, even if calls share a function. That took 14 of the 24 seconds
that a MaxViT took to compile, and 22 of the 31 seconds of an NF-RegNet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from ...support.failures import reason_of
from ..rewriting.functions import own_functions
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.values import bindings_of
from ..stitch.dataflow import call_args, is_call_tir, result_types

_TARGET = "llvm"
"""The target that ``FoldConstant`` has: any x86-64, so that constants do not depend on the machine that compiles."""

_MOST_AXES = 64
"""Most elements of a result without operands. Shapes are such results. NumPy's arrays have at most 64 axes."""


@dataclass(frozen=True)
class _Evaluation:
    """A call to evaluate: the variable that it is bound to, its function, its operands, and its results.

    ``names`` has the variables of each result: that of the call, or those of the elements of its tuple.
    """

    var: relax.Var
    function: tvm.ir.GlobalVar
    operands: Sequence[relax.Expr]
    results: Sequence[relax.TensorType]
    names: Sequence[list[relax.Var]]


def with_evaluated_calls(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module with constants in place of calls of functions with constants.

    Calls without operands stay if they fill large tensors, and so do the calls that read these. If the
    functions cannot be built, all calls stay.

    Args:
        mod: a legalized module, with functions that this machine's CPU can run.
    """
    evaluations = [each for _, func in own_functions(mod) for each in _evaluations(mod, func)]
    if not evaluations:
        return mod
    gvars = dict.fromkeys(each.function for each in evaluations)
    views = {gvar for gvar in gvars if relax.analysis.has_reshape_pattern(mod[gvar])}
    try:
        library = _library({gvar: mod[gvar] for gvar in gvars if gvar not in views})
    except Exception as error:  # some functions may be for another device
        reason_of(error, "constants", quiet=True)
        return mod
    known: dict[relax.Var, tvm.runtime.Tensor] = {}
    several: dict[relax.Var, Sequence[tvm.runtime.Tensor]] = {}
    for each in evaluations:
        operands = [_array(operand, known) for operand in each.operands]
        if each.function in views:
            results = [operands[0]._create_view(_extents(each.results[0]))]
        else:
            results = [tvm.runtime.empty(_extents(ty), str(ty.dtype)) for ty in each.results]
            library[each.function](*operands, *results)
        for result, names in zip(results, each.names, strict=True):
            known.update(dict.fromkeys(names, result))
        if each.var not in known:
            several[each.var] = results

    def constant(match: Match) -> relax.Expr:
        if match.var in several:
            return relax.Tuple([relax.const(result) for result in several[match.var]])
        return relax.const(known[match.var])

    rule = Rule("FoldConstant builds a library for each call", constant, variables={**known, **several})
    return apply_rules(mod, [rule], inlines_constants=True)


def _evaluations(mod: tvm.IRModule, func: relax.Function) -> list[_Evaluation]:
    """Return the calls whose operands are constants or results of such calls, each behind those that it reads."""
    evaluations: list[_Evaluation] = []
    tuples: dict[relax.Var, _Evaluation] = {}
    known: set[relax.Var] = set()
    for binding in bindings_of(func.body):
        var, value = binding.var, binding.value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in tuples:
            tuples[value.tuple_value].names[int(value.index)].append(var)
            known.add(var)
        if not is_call_tir(value) or len(value.args) != 2:
            continue
        operands, scalars = call_args(value)
        results = result_types(value)
        if scalars or not isinstance(mod[value.args[0]], tirx.PrimFunc) or not all(map(_is_static, results)):
            continue
        if not operands and max(math.prod(_extents(ty)) for ty in results) > _MOST_AXES:
            continue
        if all(isinstance(each, tvm.ir.GenericConst) or each in known for each in operands):
            is_tuple = isinstance(var.ty, relax.TupleType)
            names: list[list[relax.Var]] = [[] for _ in results] if is_tuple else [[var]]
            evaluations.append(_Evaluation(var, value.args[0], operands, results, names))
            if is_tuple:
                tuples[var] = evaluations[-1]
            else:
                known.add(var)
    return evaluations


def _is_static(ty: relax.Type) -> bool:
    shape = getattr(ty, "shape", None)
    return isinstance(shape, relax.ShapeExpr) and all(isinstance(e, tirx.IntImm) for e in shape.values)


def _extents(ty: relax.TensorType) -> tuple[int, ...]:
    return tuple(int(extent) for extent in ty.shape.values)


def _library(functions: Mapping[tvm.ir.GlobalVar, tirx.PrimFunc]) -> dict[tvm.ir.GlobalVar, Any]:
    """Return the compiled functions."""
    if not functions:
        return {}
    names = {gvar: f"constant_{i}" for i, gvar in enumerate(functions)}
    named = {names[gvar]: func.with_attr("global_symbol", names[gvar]) for gvar, func in functions.items()}
    built = tvm.tirx.build(tvm.IRModule(named), _TARGET)
    return {gvar: built[name] for gvar, name in names.items()}


def _array(operand: relax.Expr, known: Mapping[relax.Var, tvm.runtime.Tensor]) -> tvm.runtime.Tensor:
    return operand.value if isinstance(operand, tvm.ir.GenericConst) else known[operand]
