# SPDX-License-Identifier: Apache-2.0
"""Order the axes of a reduction as its data lies in memory.

A sum over axes is the same in any order of them, up to rounding. A kernel walks its elements in the order in which
the operator names the axes. After a change of layout, as for a group norm between channels-last convolutions,
neighbouring columns would lie far apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from ... import compat
from ...compat import Analyzer, Expr, Var, has_load
from ..extent import flatten, is_number
from ..ir import Access, Axis, Operator, StitchGraph, Tensor
from .build import assemble, make_operator

Path = list[tuple[Operator, Access]]
"""Operators, each with one of its accesses, to a result of the next operator or to an input."""


def in_memory_order(graph: StitchGraph) -> StitchGraph:
    """Return the graph with reduced axes in the order of memory, or the graph itself if they are in that order.

    The order comes from the largest input behind the reduction's reads. Symbolic extents keep their order.
    """
    operators = [_ordered(op) for op in graph.operators]
    changed = any(new is not op for new, op in zip(operators, graph.operators))
    return assemble(graph, operators) if changed else graph


def _ordered(op: Operator) -> Operator:
    live = [a for a in op.reduce if not is_number(a.extent, 1)]
    if op.contraction or len(live) < 2 or not all(isinstance(a.extent, int) for a in live):
        return op
    path = path_to_input(op)
    strides = strides_along(op, live, path) if path is not None else None
    if strides is None or 0 in strides.values():
        return op
    order = sorted(live, key=lambda a: -abs(strides[a.var]))
    if order == live:
        return op
    rest = [a for a in op.reduce if a not in live]
    return make_operator(
        op.name, op.output, (op.spatial, (*rest, *order)), op.value, op.operand, op.combiner, op.identity
    )


def strides_along(op: Operator, axes: Sequence[Axis], path: Path) -> dict[Var, int] | None:
    """Return the distance in elements between neighbours along each axis, in the path's input. None if unknown."""
    analyzer = Analyzer()

    def offset(moved: Var | None) -> int | None:
        point: dict[Var, Expr] = {
            a.var: compat.const(int(moved is not None and a.var.same_as(moved)), "int64") for a in op.axes
        }
        indices: list[Expr] = []
        tensor: Tensor | None = None
        for reader, access in path:
            if tensor is not None:
                point = {a.var: i for a, i in zip(reader.spatial, indices)}
            indices = [analyzer.simplify(compat.substitute(i, point)) for i in access.indices]
            tensor = access.tensor
        assert tensor is not None
        return compat.int_value(analyzer.simplify(flatten(indices, tensor.shape)))

    start = offset(None)
    offsets = {a.var: offset(a.var) for a in axes}
    if start is None or any(position is None for position in offsets.values()):
        return None
    return {var: position - start for var, position in offsets.items() if position is not None}


def path_to_input(op: Operator) -> Path | None:
    """Return the operators from a reduction back to an input, each with its access to its largest tensor."""
    path: Path = []
    reader: Operator | None = op
    while reader is not None:
        read = [
            a for a in reader.accesses if isinstance(a.tensor.size, int) and not any(map(has_load, a.indices))
        ]
        if not read:
            return None
        access = max(read, key=lambda a: int(a.tensor.size))  # the first one of several equal ones
        path.append((reader, access))
        reader = access.tensor.producer
        if reader is not None and reader.is_reduce:
            return None
    return path
