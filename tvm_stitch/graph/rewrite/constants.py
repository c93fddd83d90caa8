# SPDX-License-Identifier: Apache-2.0
"""Scalar constants become part of the expressions that read them.

Relay lowers every scalar constant to a block of its own, which writes a tensor of one element; Relax writes the number
where it is used. Behind a block a constant hides what an operator is: a division by one looks heavy, a power has no
known exponent, an index seems to be gathered.
"""

from __future__ import annotations

from collections.abc import Mapping

from ... import compat
from ...compat import Buffer, Expr, tir
from ..extent import is_number
from ..ir import Operator, StitchGraph, Tensor
from .build import assemble, make_operator


def inline_constants(graph: StitchGraph) -> StitchGraph:
    """The graph without operators that only hold a scalar constant. ``graph`` is not changed; itself if there are none.

    An operator holds one when it has no inputs, one element, and a value made of numbers, arithmetic and casts alone,
    or when it becomes so by other constants. Its value takes the place of every load of it, as it is written: casts
    stay, and so does each number's dtype. Outputs stay operators, but what reads them reads the constant. Operators
    whose results nothing needs are left out as well where anything is.
    """
    constants: dict[Tensor, Expr] = {}
    operators: list[Operator] = []
    for op in graph.operators:
        op = _inlined(op, constants)
        operators.append(op)
        if _holds_constant(op):
            constants[op.output] = op.value
    if all(not t.consumers for t in constants):
        return graph
    return assemble(graph, operators)


def with_numbers(graph: StitchGraph, numbers: Mapping[Tensor, Expr]) -> StitchGraph:
    """The graph without some of its inputs, which are of one element each, and numbers in their place."""
    operators = [_inlined(op, numbers) for op in graph.operators]
    left = StitchGraph(
        graph.name, [t for t in graph.inputs if t not in numbers], operators, graph.outputs, graph.symbols
    )
    return inline_constants(assemble(left, operators))


def _holds_constant(op: Operator) -> bool:
    one = all(is_number(e, 1) for e in op.extents)
    return one and not op.is_reduce and _is_number(op.value)


def _is_number(value: Expr) -> bool:
    """Is the expression made of numbers, arithmetic and casts? A call may cost more than the read of its result."""
    name = compat.kind(value)
    if name in ("IntImm", "FloatImm"):
        return True
    inner = name in compat.BINARY or name in ("Cast", "Not", "Select")
    return inner and all(_is_number(e) for e in compat.operands(value))


def _inlined(op: Operator, constants: Mapping[Tensor, Expr]) -> Operator:
    """The operator with the constants among its operands in its value; new spans and a new class follow from that."""
    values: dict[Buffer, Expr] = {b: constants[t] for b, t in op.operand.items() if t in constants}
    if not values:
        return op

    def visit(e: Expr) -> Expr:
        if compat.is_load(e) and compat.load_buffer(e) in values:
            value, dtype = values[compat.load_buffer(e)], compat.dtype_of(e)
            return value if compat.dtype_of(value) == dtype else tir.Cast(dtype, value)
        return compat.rebuild(e, visit)

    operand = {b: t for b, t in op.operand.items() if t not in constants}
    return make_operator(
        op.name, op.output, (op.spatial, op.reduce), visit(op.value), operand, op.combiner, op.identity
    )
