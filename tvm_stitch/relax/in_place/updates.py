# SPDX-License-Identifier: Apache-2.0
"""Write the updates of rows of an argument into the argument's own memory.

A decoder returns its cache with a few new rows. As a value this is a new tensor, and each step copies all rows. If the
caller gives the old tensor up, the new rows may be written into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from ...graph.extent import is_number, same, same_shape
from ..rewriting.functions import with_result_inferred
from ..rewriting.movement import PERMUTE
from ..rewriting.operators import operator_name
from ..rewriting.readers import Readers, only_reader, readers_of
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import RESHAPES, permutation, shape_of
from .rows import RowPositions, rows_written

Values = Mapping[relax.Var, Any]
"""The values of a function's variables."""


@dataclass(frozen=True, eq=False)
class Update:
    """A result that is an argument with other rows.

    Attributes:
        argument: the function's parameter.
        scatter: the variable of the call that replaces rows.
        result: the variable of the result.
        positions: the variable of the rows' positions.
        at: the place of each element.
    """

    argument: relax.Var
    scatter: relax.Var
    result: relax.Var
    positions: relax.Expr
    at: RowPositions


def with_results_in_place(mod: tvm.IRModule, results: Mapping[int, int], name: str = "main") -> tvm.IRModule:
    """Return a module whose function writes some results into the memory of its arguments.

    A result is written in place if it is the argument with other rows, and if the function reads the old rows nowhere
    else. Rows are replaced by ``scatter_nd``, also between two permutations of axes. The result is returned as before,
    and has the argument's memory. Other results stay new tensors. So a caller must go on with the result, and must not
    read the argument again.

    Rows at positions outside the argument are not written.

    Args:
        mod: the module, with operators of Relax.
        results: for each parameter that the caller gives up, by its position, the position of the result that
            replaces it.
        name: the function.

    Raises:
        ValueError: if there is no such function, parameter or result, or if their types differ.
    """
    mod, func = _without_unused(mod, name)
    values = relax.analysis.get_var2val(func)
    outputs = _outputs(func, values)
    readers = readers_of(func)
    updates = []
    for parameter, position in results.items():
        if not 0 <= parameter < len(func.params):
            raise ValueError(f"{name} has no parameter {parameter}: it has {len(func.params)}")
        if not 0 <= position < len(outputs):
            raise ValueError(f"{name} has no result {position}: it has {len(outputs)}")
        argument, result = func.params[parameter], outputs[position]
        if not tvm_ffi.structural_equal(argument.ty, result.ty):
            raise ValueError(
                f"parameter {argument.name} is {argument.ty}, and result {position} is {result.ty}"
            )
        update = _update(argument, result, values, readers)
        if update is not None:
            updates.append(update)
    return _rewritten(mod, name, updates) if updates else mod


def _without_unused(mod: tvm.IRModule, name: str) -> tuple[tvm.IRModule, relax.Function]:
    """Return a module whose function of that name computes nothing that nobody reads, and the function."""
    for gvar, func in mod.functions_items():
        if gvar.name_hint == name and isinstance(func, relax.Function):
            mod = mod.clone()
            mod[gvar] = relax.analysis.remove_all_unused(func)
            return mod, mod[gvar]
    raise ValueError(f"the module has no function {name!r}")


def _outputs(func: relax.Function, values: Values) -> list[relax.Expr]:
    """Return the results of a function."""
    body = func.body.body if isinstance(func.body, relax.SeqExpr) else func.body
    while isinstance(body, relax.Var) and isinstance(values.get(body), (relax.Tuple, relax.Var)):
        body = values[body]
    return list(body.fields) if isinstance(body, relax.Tuple) else [body]


def _update(argument: relax.Var, result: relax.Expr, values: Values, readers: Readers) -> Update | None:
    """Return how a result replaces rows of an argument, or None if it is computed otherwise."""
    behind, value = _through_permutations(result, values)
    call: Any = values.get(value)
    if operator_name(call) != "relax.scatter_nd" or str(call.attrs.reduction) != "update":
        return None
    order, source = _through_permutations(call.args[0], values)
    if not source.same_as(argument) or [order[axis] for axis in behind] != list(range(len(behind))):
        return None
    read = call.args[0]
    while not read.same_as(argument):  # nothing else may read the old rows
        if only_reader(readers, read) is None:
            return None
        read = values[read].args[0]
    if only_reader(readers, argument) is None:
        return None
    positions, at = _positions(call, tuple(order), values)
    return Update(argument, value, result, positions, at)


def _through_permutations(value: relax.Expr, values: Values) -> tuple[list[int], relax.Expr]:
    """Return the tensor whose axes a value permutes, and the tensor's axis for each axis of the value."""
    order = list(range(len(value.ty.shape)))
    while operator_name(values.get(value)) == PERMUTE:
        call: Any = values[value]
        inner = permutation(call, len(order))
        order, value = [inner[axis] for axis in order], call.args[0]
    return order, value


def _positions(call: Any, order: tuple[int, ...], values: Values) -> tuple[relax.Expr, RowPositions]:
    """Return the positions of a call of ``scatter_nd``, without the operators that count negative ones from the end."""
    given = call.args[1]
    *lead, depth = shape_of(given) or ()
    plain = RowPositions(order, len(lead), int(depth))
    if not is_number(depth, 1):
        return given, plain
    inner = given
    while operator_name(values.get(inner)) in (*RESHAPES, "relax.broadcast_to"):
        inner = values[inner].args[0]
    raw = _wrapped(inner, (shape_of(call.args[0]) or ())[0], values)
    if raw is None or not same_shape(shape_of(raw) or (), lead):
        return given, plain
    return raw, RowPositions(order, len(lead), 1, wraps=True)


def _wrapped(value: relax.Expr, extent: Any, values: Values) -> relax.Expr | None:
    """Return ``p`` of ``where(p < 0, p + extent, p)``, or None for another value."""
    call: Any = values.get(value)
    if operator_name(call) != "relax.where":
        return None
    condition: Any = values.get(call.args[0])
    moved: Any = values.get(call.args[1])
    raw = call.args[2]
    if operator_name(condition) != "relax.less" or operator_name(moved) != "relax.add":
        return None
    first, zero = condition.args
    second, added = moved.args
    is_same = first.same_as(raw) and second.same_as(raw)
    return raw if is_same and _is_constant(zero, 0) and _is_constant(added, extent) else None


def _is_constant(value: relax.Expr, number: Any) -> bool:
    is_constant = isinstance(value, tvm.ir.GenericConst) and not value.ty.shape.values
    return is_constant and same(int(value.value.numpy()), number)


def _rewritten(mod: tvm.IRModule, name: str, updates: list[Update]) -> tvm.IRModule:
    written: dict[relax.Var, relax.Var] = {}
    by_scatter = {update.scatter: update for update in updates}

    def scattered(match: Match) -> relax.Expr:
        update = by_scatter[match.var]
        argument, positions = match.now(update.argument), match.now(update.positions)
        rows = match.value.args[2]
        func = match.builder.add_func(
            rows_written(argument.ty, positions.ty, rows.ty, update.at), "rows_written"
        )
        operands = relax.Tuple([argument, positions, rows])
        call = relax.op.call_tir_inplace(func, operands, [0], argument.ty)
        if update.result.same_as(update.scatter):
            return call
        written[update.result] = match.emit(call, f"{update.argument.name}_updated")
        return relax.op.permute_dims(written[update.result], list(update.at.order))

    rules = [
        Rule("new rows are written into the old tensor", scattered, variables=set(by_scatter)),
        Rule(
            "the old tensor is the result",
            lambda match: written.get(match.var),
            variables={update.result for update in updates},
            leaves_unused=True,
        ),
    ]
    mod = apply_rules(mod, rules)
    for gvar, func in mod.functions_items():
        if gvar.name_hint == name:
            mod.update_func(gvar, with_result_inferred(func))
    return mod
