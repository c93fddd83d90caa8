# SPDX-License-Identifier: Apache-2.0
"""Create tensors and operators of a StitchGraph, and assemble a graph of old and new operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ... import compat
from ...compat import Buffer, Expr, Var, tir
from ..access import loads, span_of
from ..classify import classify, is_contraction
from ..extent import Extent, as_expr
from ..ir import Access, Axis, Operator, StitchGraph, Tensor, copied


def new_tensor(name: str, shape: Sequence[Extent], dtype: str) -> Tensor:
    """Return a tensor with a buffer of its own."""
    return Tensor(name, tuple(shape), dtype, tir.decl_buffer([as_expr(e) for e in shape], dtype, name))


def fresh_axes(axes: Sequence[Axis]) -> tuple[tuple[Axis, ...], dict[Var, Expr]]:
    """Return axes of the same extents over new variables, and the new variable of each old one."""
    renamed = tuple(Axis(tir.Var(str(a.var), "int64"), a.extent) for a in axes)
    return renamed, {old.var: new.var for old, new in zip(axes, renamed, strict=True)}


def make_operator(
    name: str,
    output: Tensor,
    axes: tuple[Sequence[Axis], Sequence[Axis]],
    value: Expr,
    operand: Mapping[Buffer, Tensor],
    combiner: str | None = None,
    identity: Expr | None = None,
) -> Operator:
    """Return an operator over ``axes`` (spatial, reduced) that is not wired to its tensors yet.

    :func:`assemble` wires it. ``operand`` holds at least the buffers that ``value`` reads.
    """
    spatial, reduce = axes
    accesses = []
    for load, guarded in loads(value):
        buffer, indices = compat.load_buffer(load), compat.elements(load.indices)
        tensor = operand[buffer]
        span, cut = span_of(indices, tensor.shape, [*spatial, *reduce])
        accesses.append(Access(tensor, buffer, tuple(indices), guarded, span, cut))
    return Operator(
        name, output, tuple(spatial), tuple(reduce), value, tuple(accesses),
        {a.buffer: a.tensor for a in accesses}, classify(value, accesses, combiner), combiner, identity,
        is_contraction(value, combiner),
    )  # fmt: skip


def assemble(graph: StitchGraph, operators: Sequence[Operator]) -> StitchGraph:
    """Return the graph of ``operators`` (in topological order) over new tensors.

    Operators that no output needs are dropped. ``graph`` provides name, inputs, outputs and symbols. Neither it nor
    any operator is changed. All inputs are kept.
    """
    made_by = {op.output: op for op in operators}
    needed: set[Tensor] = set()
    pending = list(graph.outputs)
    while pending:
        tensor = pending.pop()
        if tensor not in needed:
            needed.add(tensor)
            pending += made_by[tensor].inputs if tensor in made_by else []
    kept = [op for op in operators if op.output in needed]
    tensors = {
        t: Tensor(t.name, t.shape, t.dtype, t.buffer) for t in [*graph.inputs, *(op.output for op in kept)]
    }
    return StitchGraph(
        graph.name,
        [tensors[t] for t in graph.inputs],
        [copied(op, tensors) for op in kept],
        [tensors[t] for t in graph.outputs],
        list(graph.symbols),
    )
