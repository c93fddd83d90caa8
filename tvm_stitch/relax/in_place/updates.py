# SPDX-License-Identifier: Apache-2.0
"""Write the updates of rows of an argument into the argument's own memory.

A decoder returns its cache with a few new rows. As a value this is a new tensor, and each step copies all rows. A caller
that gives the old tensor up loses nothing if the new rows are written into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import relax

from ..rewriting.functions import with_result_inferred
from ..rewriting.movement import PERMUTE
from ..rewriting.operators import operator_name
from ..rewriting.readers import Readers, only_reader, readers_of
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import permutation
from .rows import rows_written

SCATTER = "relax.scatter_nd"


@dataclass(frozen=True, eq=False)
class Update:
    """A result that is an argument with other rows.

    Attributes:
        argument: the function's parameter.
        scatter: the variable of the call that replaces rows, and the result's own variable.
        result: the variable of the result.
        order: for each axis of the scattered tensor, the axis of the argument.
    """

    argument: relax.Var
    scatter: relax.Var
    result: relax.Var
    order: tuple[int, ...]


def in_place(mod: tvm.IRModule, results: Mapping[str, int], name: str = "main") -> tvm.IRModule:
    """Return a module whose function writes some results into the memory of its arguments.

    A result is written in place if it is the argument with other rows (``scatter_nd``, also between two permutations of
    axes), and if the function reads the old rows nowhere else. It is returned as before, and has the argument's memory.
    Other results stay new tensors. So a caller must go on with the result, and must not read the argument again.

    Rows at positions outside the argument are not written.

    Args:
        mod: the module, with operators of Relax.
        results: for each parameter that the caller gives up, the position of the result that replaces it.
        name: the function.

    Raises:
        ValueError: if there is no such function, parameter or result, or if their types differ.
    """
    mod, func = _without_unused(mod, name)
    parameters = {str(var.name): var for var in func.params}
    values = relax.analysis.get_var2val(func)
    outputs = _outputs(func, values)
    readers = readers_of(func)
    found = []
    for parameter, position in results.items():
        if parameter not in parameters:
            raise ValueError(f"{name} has no parameter {parameter!r}; it has {', '.join(parameters)}")
        if not 0 <= position < len(outputs):
            raise ValueError(f"{name} has no result {position}; it has {len(outputs)}")
        argument, result = parameters[parameter], outputs[position]
        if not tvm_ffi.structural_equal(argument.ty, result.ty):
            raise ValueError(f"parameter {parameter!r} is {argument.ty}, and result {position} is {result.ty}")
        update = _update(argument, result, values, readers)
        if update is not None:
            found.append(update)
    return _rewritten(mod, name, found) if found else mod


def _without_unused(mod: tvm.IRModule, name: str) -> tuple[tvm.IRModule, relax.Function]:
    """Return a module whose function of that name computes nothing that nobody reads, and the function."""
    for gvar, func in mod.functions_items():
        if gvar.name_hint == name and isinstance(func, relax.Function):
            mod = mod.clone()
            mod[gvar] = relax.analysis.remove_all_unused(func)
            return mod, mod[gvar]
    raise ValueError(f"the module has no function {name!r}")


def _outputs(func: relax.Function, values: Mapping[relax.Var, relax.Expr]) -> list[relax.Expr]:
    """Return the results of a function, as far as they are variables."""
    body = func.body.body if isinstance(func.body, relax.SeqExpr) else func.body
    while isinstance(body, relax.Var) and isinstance(values.get(body), (relax.Tuple, relax.Var)):
        body = values[body]
    return list(body.fields) if isinstance(body, relax.Tuple) else [body]


def _update(
    argument: relax.Var, result: relax.Expr, values: Mapping[relax.Var, relax.Expr], readers: Readers
) -> Update | None:
    """Return how a result replaces rows of an argument, or None if it is computed otherwise."""
    rank = len(result.ty.shape)
    behind, value = _through_permutations(result, values)
    call = values.get(value)
    if operator_name(call) != SCATTER or str(call.attrs.reduction) != "update":
        return None
    order, source = _through_permutations(call.args[0], values)
    if not source.same_as(argument) or [order[axis] for axis in behind] != list(range(rank)):
        return None
    read = call.args[0]
    while not read.same_as(argument):  # nothing else may read the old rows
        if only_reader(readers, read) is None:
            return None
        read = values[read].args[0]
    return Update(argument, value, result, tuple(order)) if only_reader(readers, argument) else None


def _through_permutations(
    value: relax.Expr, values: Mapping[relax.Var, relax.Expr]
) -> tuple[list[int], relax.Expr]:
    """Return the tensor whose axes a value permutes, and the tensor's axis for each axis of the value."""
    order = list(range(len(value.ty.shape)))
    while operator_name(call := values.get(value)) == PERMUTE:
        inner = permutation(call, len(order))
        order, value = [inner[axis] for axis in order], call.args[0]
    return order, value


def _rewritten(mod: tvm.IRModule, name: str, updates: list[Update]) -> tvm.IRModule:
    written: dict[relax.Var, relax.Var] = {}
    by_scatter = {update.scatter: update for update in updates}
    by_result = {update.result: update for update in updates}

    def scattered(match: Match) -> relax.Expr:
        update = by_scatter[match.var]
        _, positions, rows = match.value.args
        argument = match.now(update.argument)
        func = match.builder.add_func(rows_written(argument.ty, positions.ty, rows.ty, update.order), "rows_written")
        operands = relax.Tuple([argument, positions, rows])
        call = relax.op.call_tir_inplace(func, operands, [0], argument.ty)
        if update.result.same_as(update.scatter):
            return call
        written[update.result] = match.emit(call, f"{update.argument.name}_updated")
        inverse = list(update.order)
        return relax.op.permute_dims(written[update.result], inverse)

    def returned(match: Match) -> relax.Expr | None:
        return written[match.var] if match.var in written else None

    rules = [
        Rule("new rows are written into the old tensor", scattered, variables=set(by_scatter)),
        Rule("the old tensor is the result", returned, variables=set(by_result), leaves_unused=True),
    ]
    mod = apply_rules(mod, rules)
    for gvar, func in mod.functions_items():
        if gvar.name_hint == name:
            mod.update_func(gvar, with_result_inferred(func))
    return mod
