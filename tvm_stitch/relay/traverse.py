# SPDX-License-Identifier: Apache-2.0
"""Walks over Relay expressions without recursion: models are deeper than Python's recursion limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tvm
from tvm import relay

Expr = Any


_PARTS: dict[Any, Callable[[Expr], list[Expr]]] = {
    relay.Call: lambda e: [e.op, *e.args],
    relay.Tuple: lambda e: list(e.fields),
    relay.TupleGetItem: lambda e: [e.tuple_value],
    relay.Let: lambda e: [e.value, e.body],
    relay.If: lambda e: [e.cond, e.true_branch, e.false_branch],
    relay.RefCreate: lambda e: [e.value],
    relay.RefRead: lambda e: [e.ref],
    relay.RefWrite: lambda e: [e.ref, e.value],
    relay.Match: lambda e: [e.data],
}


def children(expr: Expr) -> list[Expr]:
    """Return the direct sub-expressions. A function literal is a leaf, and so are the clauses of a match."""
    parts = _PARTS.get(type(expr))
    return [] if parts is None else parts(expr)


def remake(expr: Expr, new: list[Expr]) -> Expr:
    """Return the expression with other sub-expressions, in the order of :func:`children`."""
    if all(a.same_as(b) for a, b in zip(children(expr), new)):
        return expr
    if isinstance(expr, relay.Call):
        return relay.Call(new[0], new[1:], expr.attrs, expr.type_args, expr.span)
    if isinstance(expr, relay.Tuple):
        return relay.Tuple(new, expr.span)
    if isinstance(expr, relay.TupleGetItem):
        return relay.TupleGetItem(new[0], expr.index, expr.span)
    if isinstance(expr, relay.Let):
        return relay.Let(expr.var, new[0], new[1], expr.span)
    if isinstance(expr, relay.If):
        return relay.If(*new, expr.span)
    if isinstance(expr, relay.Match):
        return relay.Match(new[0], expr.clauses, expr.complete)
    return type(expr)(*new)


def post_order(roots: Iterable[Expr], below: Callable[[Expr], list[Expr]] = children) -> Iterator[Expr]:
    """Yield every expression under the roots once, after its sub-expressions."""
    done: set[Expr] = set()
    for root in roots:
        stack = [(root, False)]
        while stack:
            expr, opened = stack.pop()
            if expr in done:
                continue
            if opened:
                done.add(expr)
                yield expr
                continue
            stack.append((expr, True))
            stack += [(c, False) for c in reversed(below(expr)) if c not in done]


def rewrite(root: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Return the expression with ``change`` applied to all sub-expressions and itself, from the leaves up."""
    new: dict[Expr, Expr] = {}
    for expr in post_order([root]):
        new[expr] = change(remake(expr, [new[c] for c in children(expr)]))
    return new[root]


def with_calls(mod: tvm.IRModule, change: Callable[[Expr], Expr]) -> tvm.IRModule:
    """Return the module with ``change`` applied to all calls in its functions, except calls within function
    literals.
    """

    def at(expr: Expr) -> Expr:
        return change(expr) if isinstance(expr, relay.Call) else expr

    return with_bodies(mod, lambda _name, func: rewrite(func.body, at))


def with_bodies(mod: tvm.IRModule, change: Callable[[str, Any], Expr]) -> tvm.IRModule:
    """Return the module with ``change(name, func)`` as the bodies of its functions, with types inferred again."""
    new = tvm.IRModule(dict(mod.functions.items()), mod.type_definitions, attrs=mod.attrs)
    for gvar, func in mod.functions.items():
        if isinstance(func, relay.Function) and func.body is not None:
            body = change(gvar.name_hint, func)
            new[gvar] = relay.Function(func.params, body, func.ret_type, func.type_params, func.attrs)
    return relay.transform.InferType()(new)
