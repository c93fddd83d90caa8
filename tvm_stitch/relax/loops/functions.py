# SPDX-License-Identifier: Apache-2.0
"""Private Relax functions that are built while another function is under construction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.utils import copy_with_new_vars

Fill = Callable[[list[relax.Var]], Any]
"""Emits a function's body, given its parameters, and returns the result: an expression, or several as a list."""


def symbols_of(types: Sequence[Any]) -> list[Any]:
    """Return the variables in the shapes of some types, each once, in order."""
    found: dict[Any, None] = {}
    for ty in types:
        found |= dict.fromkeys(_symbols(ty))
    return list(found)


def _symbols(ty: Any) -> list[Any]:
    if isinstance(ty, tvm.ir.TupleType):
        return [symbol for field in ty.fields for symbol in _symbols(field)]
    shape = getattr(ty, "shape", None) if isinstance(ty, relax.TensorType) else None
    values = shape.values if isinstance(shape, relax.ShapeExpr) else ()
    if isinstance(ty, relax.ShapeType):
        values = ty.values or ()
    return [symbol for value in values for symbol in tirx.analysis.undefined_vars(value)]


def function_of(
    builder: relax.BlockBuilder,
    params: Sequence[relax.Var],
    fill: Fill,
    attrs: Mapping[str, Any] | None = None,
    straight: bool = True,
    result: Any = None,
) -> relax.Function:
    """Return a function that is not in the builder's module yet.

    Args:
        builder: a builder, which may be in another function and in a dataflow block of it.
        params: the parameters. Variables of their shapes are the function's own.
        fill: emits the body.
        attrs: attributes of the function.
        straight: whether the body has no branches: it is then one dataflow block.
        result: the type of the result, if it cannot be inferred.
    """
    builder.begin_scope(list(params))
    _begin(builder, straight)
    results = fill(list(params))
    body = _end(builder, results, straight)
    builder.end_scope()
    func = relax.Function(list(params), body, body.ty if result is None else result, True)
    for key, value in (attrs or {}).items():
        func = func.with_attr(key, value)
    return copy_with_new_vars(func)  # no two functions may share a variable of shapes


def private_function(
    builder: relax.BlockBuilder,
    name: str,
    params: Sequence[relax.Var],
    fill: Fill,
    attrs: Mapping[str, Any] | None = None,
    straight: bool = True,
    known: tvm.ir.GlobalVar | None = None,
    result: Any = None,
) -> tvm.ir.GlobalVar:
    """Add a private function to the builder's module and return its name.

    Args:
        builder, params, fill, attrs, straight, result: as for :func:`function_of`.
        name: the first choice of a name.
        known: the name of a function that is replaced, as :func:`declared` returns it.
    """
    func = function_of(builder, params, fill, attrs, straight, result)
    if known is None:
        return builder.add_func(func, name)
    builder.update_func(known, func)
    return known


def declared(
    builder: relax.BlockBuilder, name: str, params: Sequence[relax.Var], result: Any
) -> tvm.ir.GlobalVar:
    """Return the name of a function that will call itself. :func:`private_function` replaces its empty body."""
    func = relax.Function.create_empty(list(params), result, True)
    return builder.add_func(func, name)


def types_of(builder: relax.BlockBuilder, fill: Callable[[], Sequence[Any]]) -> list[Any]:
    """Return the types of values, without keeping the operators that compute them."""
    builder._begin_dataflow_block()
    found = [builder.normalize(value).ty for value in fill()]
    builder._end_block()
    return found


def branch(builder: relax.BlockBuilder, fill: Callable[[], Any]) -> relax.SeqExpr:
    """Return a branch of a condition, with the bindings that ``fill`` emits and its result."""
    _begin(builder, False)
    return _end(builder, fill(), False)


def _begin(builder: relax.BlockBuilder, straight: bool) -> None:
    if straight:
        builder._begin_dataflow_block()
    else:
        builder._begin_binding_block()


def _end(builder: relax.BlockBuilder, results: Any, straight: bool) -> relax.SeqExpr:
    expr = relax.Tuple(list(results)) if isinstance(results, (list, tuple)) else results
    if straight:
        out = builder.emit_output(expr)
    else:
        out = builder.emit(expr)
    body = relax.SeqExpr([builder._end_block()], out)
    return builder.normalize(body)
