# SPDX-License-Identifier: Apache-2.0
"""Slices: the operators of a stitch op that iterate one row domain, between values that cross device memory.

A plan is a list of *phases*, divided by grid barriers. Each phase is a list of stages. A stage evaluates a slice,
which is a StitchGraph of its own. Its inputs are the stitch op's inputs and *global values* (the Global scheme of
AStitch, section 3). Earlier phases left these in device memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from .. import compat
from ..compat import tir
from ..cost.choices import Choices
from ..graph.extent import Extent, as_expr
from ..graph.ir import Access, Axis, OpClass, Operator, Span, StitchGraph, Tensor, copied
from . import dominants
from .iteration.alignment import Alignment, align
from .iteration.domain import Domain


@dataclass(frozen=True, eq=False)
class Slice:
    """Operators evaluated over one domain in one phase, shared out over the blocks.

    A ``replicated`` slice is small: every block evaluates all of it, and keeps what it stores in shared memory.

    ``roots`` (operators of the whole graph, in topological order) are the operators that the slice computes. Those in
    ``cross_row`` are reductions across its rows. Those in ``stored`` leave their result in device memory.

    ``alignment`` is of the slice's own graph. ``copies`` and ``tensors`` give its operators and tensors for those of
    the whole one. ``dominant`` is the operator that the rows of the domain come from. It may be an operator of
    another slice, whose mapping this one takes over (AStitch's proactive adaptation). It is None for a graph without
    operators.
    """

    phase: int
    domain: Domain
    roots: tuple[Operator, ...]
    cross_row: frozenset[Operator]
    stored: frozenset[Operator]
    alignment: Alignment
    copies: Mapping[Operator, Operator]
    tensors: Mapping[Tensor, Tensor]
    replicated: bool = False
    dominant: Operator | None = None

    @property
    def graph(self) -> StitchGraph:
        """The slice's own graph."""
        return self.alignment.graph


@dataclass(frozen=True)
class Cut:
    """The boundaries of slices: producers of the whole graph's tensors, and the tensors that are global."""

    producer: dict[Tensor, Operator]
    ready: dict[Tensor, int] = field(default_factory=dict)
    """The first phase that may read a global value."""


def slice_operators(cut: Cut, roots: Iterable[Operator], phase: int) -> list[Operator]:
    """Return all operators that the roots need in a phase, producers first, not looking behind global values."""
    operators: dict[Operator, None] = {}

    def visit(op: Operator) -> None:
        if op in operators:
            return
        for tensor in op.inputs:
            producer = cut.producer.get(tensor)
            if producer is not None and cut.ready.get(tensor, phase + 1) > phase:
                visit(producer)
        operators[op] = None

    for root in roots:
        visit(root)
    return list(operators)


def slice_graph(
    cut: Cut, roots: Iterable[Operator], stored: Collection[Operator], phase: int, name: str
) -> tuple[StitchGraph, dict[Operator, Operator], dict[Tensor, Tensor]]:
    """Return the graph that computes ``roots`` from inputs and global values.

    The operators and tensors of the whole graph are mapped to their copies in it.
    """
    operators = slice_operators(cut, roots, phase)
    inside = {op.output for op in operators}
    tensors: dict[Tensor, Tensor] = {}
    inputs: list[Tensor] = []

    def tensor_of(t: Tensor) -> Tensor:
        if t not in tensors:
            tensors[t] = Tensor(t.name, t.shape, t.dtype, t.buffer)
            if t not in inside:
                inputs.append(tensors[t])
        return tensors[t]

    copies: dict[Operator, Operator] = {}
    for op in operators:
        for t in op.inputs:
            tensor_of(t)
        tensor_of(op.output)
        copies[op] = copied(op, tensors)
    outputs = [tensors[op.output] for op in operators if op in stored]
    return StitchGraph(name, inputs, list(copies.values()), outputs), copies, tensors


def whole(alignment: Alignment) -> Slice:
    """Return the slice that is all of an aligned graph."""
    graph = alignment.graph
    stored = frozenset(t.producer for t in graph.outputs if t.producer is not None)
    operators = {op: op for op in graph.operators}
    tensors = {t: t for t in graph.tensors()}
    return Slice(
        0, alignment.domain, tuple(dominants.roots(graph)), frozenset(), stored, alignment, operators, tensors,
        dominant=alignment.dominant,
    )  # fmt: skip


def aligned_slice(
    cut: Cut,
    choices: Choices,
    phase: int,
    domain: Domain,
    roots: Iterable[Operator],
    cross_row: Collection[Operator] = (),
    stored: Collection[Operator] = (),
    replicated: bool = False,
    dominant: Operator | None = None,
) -> Slice:
    """Return the slice of a phase that computes these roots over a domain, whose rows come from ``dominant``.

    Raises:
        Misaligned: when the domain does not serve them all.
    """
    roots = tuple(roots)
    graph, copies, tensors = slice_graph(cut, roots, stored, phase, f"phase{phase}")
    alignment = align(graph, choices, domain, [copies[op] for op in cross_row])
    folded, kept = frozenset(cross_row), frozenset(stored)
    return Slice(phase, domain, roots, folded, kept, alignment, copies, tensors, replicated, dominant)


def partial_tensor(op: Operator, blocks: Extent, dtype: str) -> Tensor:
    """Return the tensor of a reduction's partial results across rows: for every result one from each block."""
    shape = (*(a.extent for a in op.spatial), blocks)
    name = f"{op.output.name.split('_intermediate')[0]}_partial"
    return Tensor(name, shape, dtype, tir.decl_buffer([as_expr(e) for e in shape], dtype, name))


def final_reduce(op: Operator, partial: Tensor) -> Operator:
    """Return the reduction of the partial results, which replaces ``op`` for its consumers."""
    spatial = tuple(Axis(tir.Var(f"s{i}", "int64"), a.extent) for i, a in enumerate(op.spatial))
    block = Axis(tir.Var("b", "int64"), partial.shape[-1])
    indices = tuple(a.var for a in (*spatial, block))
    value = compat.load(partial.buffer, indices)
    access = Access(partial, partial.buffer, indices, False, Span.ALL, len(indices))
    return Operator(
        op.name, op.output, spatial, (block,), value, (access,), {partial.buffer: partial}, OpClass.REDUCE,
        op.combiner, op.identity,
    )  # fmt: skip
