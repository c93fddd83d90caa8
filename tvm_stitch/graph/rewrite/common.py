# SPDX-License-Identifier: Apache-2.0
"""Common-subexpression elimination: operators that compute the same value become one.

Legalization writes an operator anew for every use (batch norm subtracts the mean three times); a plan would evaluate
each, and might keep each between two passes.
"""

from __future__ import annotations

from collections.abc import Hashable

from ... import compat
from ...compat import Buffer, Expr, Var
from ..extent import extent_key
from ..ir import Operator, StitchGraph, Tensor
from .build import assemble, with_value


def merge_common(graph: StitchGraph) -> StitchGraph:
    """The graph without operators that repeat an earlier one. ``graph`` is not changed; itself if there are none.

    Outputs stay operators of their own, even when two are equal; what repeats an earlier output reads that.
    """
    outputs = set(graph.outputs)
    instead: dict[Tensor, Tensor] = {}
    known: dict[Hashable, Tensor] = {}
    operators: list[Operator] = []
    for op in graph.operators:
        op = _redirect(op, instead)
        key = _key(op)
        if key in known and op.output not in outputs:
            instead[op.output] = known[key]
            continue
        known.setdefault(key, op.output)
        operators.append(op)
    return assemble(graph, operators) if instead else graph


def _redirect(op: Operator, instead: dict[Tensor, Tensor]) -> Operator:
    """The operator reading what replaces its operands."""
    if not any(t in instead for t in op.inputs):
        return op
    buffers: dict[Buffer, Buffer] = {b: instead[t].buffer for b, t in op.operand.items() if t in instead}
    operand = {b: t for b, t in op.operand.items() if t not in instead}
    for t in (instead[t] for t in op.inputs if t in instead):
        if operand.setdefault(t.buffer, t) is not t:
            return op  # calls of one function share buffers: this one already stands for another tensor

    def visit(e: Expr) -> Expr:
        if compat.is_load(e):
            buffer = compat.load_buffer(e)
            return compat.load(buffers.get(buffer, buffer), [visit(i) for i in e.indices])
        return compat.rebuild(e, visit)

    return with_value(op, visit(op.value), operand)


def _key(op: Operator) -> Hashable:
    """What an operator computes, but for the names of its axes."""
    position: dict[Var, int] = {a.var: i for i, a in enumerate(op.axes)}

    def visit(e: Expr) -> Hashable:
        name = compat.kind(e)
        if e in position:
            return position[e]
        if compat.is_load(e):
            return "load", id(op.operand[compat.load_buffer(e)]), *map(visit, e.indices)
        if name in ("IntImm", "FloatImm", "StringImm"):
            return name, compat.dtype_of(e) if name != "StringImm" else "", repr(e.value)
        if name in ("Var", "SizeVar", "Let"):
            return name, e
        callee = compat.call_name(e) if name == "Call" else ""
        return name, compat.dtype_of(e), callee, *map(visit, compat.operands(e))

    extents = tuple(map(extent_key, op.extents))
    start = visit(op.identity) if op.identity is not None else None
    shape = tuple(map(extent_key, op.output.shape))
    return extents, len(op.spatial), shape, op.output.dtype, op.combiner, start, visit(op.value)
