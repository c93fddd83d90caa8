# SPDX-License-Identifier: Apache-2.0
"""Fold scalar constants into the expressions that read them.

Relay lowers every scalar constant to its own block, which writes a tensor of one element. Relax writes the number
into its reader. A constant in its own block hides an operator's class. A division by it looks heavy, a power has no
known exponent, an index looks gathered.
"""

from __future__ import annotations

from collections.abc import Mapping

from ... import compat
from ...compat import Buffer, Expr, tir
from ..extent import is_number
from ..ir import Operator, StitchGraph, Tensor
from .build import assemble, make_operator


def inline_constants(graph: StitchGraph) -> StitchGraph:
    """Return the graph without operators that only hold a scalar constant.

    ``graph`` is not changed. It is returned itself if it has no such operators. An operator holds a constant if it
    has no inputs, one element, and a value of numbers, arithmetic and casts only. Folding other constants may make an
    operator one that holds a constant. Its value replaces every load of it. Casts and the dtypes of numbers stay.
    Outputs remain operators, but their readers read the constant. If anything is folded, operators without a reader
    are dropped as well.
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
    """Return the graph with some inputs of one element each replaced by numbers."""
    operators = [_inlined(op, numbers) for op in graph.operators]
    left = StitchGraph(
        graph.name, [t for t in graph.inputs if t not in numbers], operators, graph.outputs, graph.symbols
    )
    return inline_constants(assemble(left, operators))


def _holds_constant(op: Operator) -> bool:
    one = all(is_number(e, 1) for e in op.extents)
    return one and not op.is_reduce and _is_number(op.value)


def _is_number(value: Expr) -> bool:
    """Return whether the expression consists of numbers, arithmetic and casts.

    A call does not count, because it may cost more than reading its result.
    """
    name = compat.kind(value)
    if name in ("IntImm", "FloatImm"):
        return True
    inner = name in compat.BINARY or name in ("Cast", "Not", "Select")
    return inner and all(_is_number(e) for e in compat.operands(value))


def _inlined(op: Operator, constants: Mapping[Tensor, Expr]) -> Operator:
    """Return the operator with constant operands folded into its value. Spans and class are computed again."""
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
