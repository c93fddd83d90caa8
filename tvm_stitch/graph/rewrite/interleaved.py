# SPDX-License-Identifier: Apache-2.0
"""Divide reductions whose rows interleave in memory: first columns, then the few columns of each row.

A group norm of channels-last images reduces a few neighbouring channels of every position. The channels of other
groups lie between them, so that a row of such a reduction is a strided column of memory. Its block reads a few bytes
of each sector. Sums over the positions alone, one for each channel, read whole sectors::

    s[n, g] = sum over p, c of x[n, p, g, c]        t[n, g, c] = sum over p of x[n, p, g, c]
                                                    s[n, g] = sum over c of t[n, g, c]

Both are the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ... import compat
from ..dtype import HALF, item_bytes
from ..extent import is_number, product
from ..ir import Axis, Operator, StitchGraph
from .build import assemble, fresh_axes, make_operator, new_tensor
from .reduced_order import path_to_input, strides_along


@dataclass(frozen=True)
class Runs:
    """The neighbouring elements of a row in memory.

    Attributes:
        axes: the reduced axes along which they lie.
        bytes: the size of one run.
        read: the size of the tensor that has the runs.
    """

    axes: tuple[Axis, ...]
    bytes: int
    read: int


def runs_of(op: Operator) -> Runs | None:
    """Return the runs of a reduction between which elements of other rows lie, None if there are no such runs.

    All extents must be static.
    """
    if not op.is_reduce or op.contraction or op.output.dtype in HALF:
        return None
    live = [a for a in op.axes if not is_number(a.extent, 1)]
    path = path_to_input(op) if all(isinstance(a.extent, int) for a in live) else None
    strides = strides_along(op, live, path) if path is not None else None
    if path is None or strides is None:
        return None
    reduced = {a.var for a in op.reduce}
    order = sorted(live, key=lambda a: abs(strides[a.var]))
    run, length = list[Axis](), 1
    for axis in order:
        if axis.var not in reduced or strides[axis.var] != length:
            break
        run.append(axis)
        length *= int(axis.extent)
    others = [a for a in live if a.var in reduced and a not in run]
    apart = order[len(run)] if len(run) < len(order) else None
    if not run or not others or apart is None or apart.var in reduced or strides[apart.var] == 0:
        return None
    tensor = path[-1][1].tensor
    item = item_bytes(tensor.dtype)
    return Runs(tuple(a for a in op.reduce if a in run), length * item, int(product(tensor.shape)) * item)


def divided(graph: StitchGraph, chosen: Callable[[Operator], Runs | None]) -> StitchGraph:
    """Return the graph in which the reductions with ``chosen`` runs are divided. It is ``graph`` if none is."""
    operators: list[Operator] = []
    for op in graph.operators:
        runs = chosen(op) if op.is_reduce else None
        operators += _in_two(op, runs.axes) if runs is not None else [op]
    return assemble(graph, operators) if len(operators) > len(graph.operators) else graph


def _in_two(op: Operator, inner: Collection[Axis]) -> list[Operator]:
    """Return a reduction over all axes but ``inner``, and the reduction of its results over these."""
    (spatial, names), (last, more) = fresh_axes(op.spatial), fresh_axes([a for a in op.reduce if a in inner])
    first, others = fresh_axes([a for a in op.reduce if a not in inner])
    shape = [*op.output.shape, *(a.extent for a in last)]
    columns = new_tensor(f"{op.output.name}_columns", shape, op.output.dtype)
    value = compat.substitute(op.value, {**names, **more, **others})
    by_column = make_operator(
        columns.name, columns, ((*spatial, *last), first), value, op.operand, op.combiner, op.identity
    )
    (spatial, _), (last, _) = fresh_axes(op.spatial), fresh_axes(last)
    load = compat.load(columns.buffer, [a.var for a in (*spatial, *last)])
    return [
        by_column,
        make_operator(
            op.name, op.output, (spatial, last), load, {columns.buffer: columns}, op.combiner, op.identity
        ),
    ]
