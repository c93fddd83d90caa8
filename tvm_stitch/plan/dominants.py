# SPDX-License-Identifier: Apache-2.0
"""Dominant groups: the planner's first step (AStitch 4.3, step 1).

Candidates for dominants are reductions, costly values that are broadcast, and outputs. Candidates that Local
operators alone connect are merged into one *group*. One of them is its *dominant*, a reduction if there is one, and
the others are *sub-dominants*. The dominant says what a row is, and the mapping of all other operators is propagated
from it. Groups meet at dominants and sub-dominants only.

The same merging is done twice. The planner merges by element-level dependencies, before anything is mapped, to choose
dominants. Once a stage is mapped, it merges by the propagated points. They say which dependencies its mapping keeps
within a thread (``plan.finalise``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from ..graph.extent import Extent, quotient, same
from ..graph.ir import Access, Dependency, OpClass, Operator, Span, StitchGraph, Tensor

Choice = Callable[[Sequence[Operator]], Operator]
"""Picks the dominant among the candidates of a group, which come producers first."""


@dataclass(frozen=True)
class Group:
    """A dominant, the sub-dominants merged with it, and all operators that follow its mapping, producers first."""

    dominant: Operator
    sub_dominants: tuple[Operator, ...]
    members: tuple[Operator, ...]

    @property
    def candidates(self) -> tuple[Operator, ...]:
        """The dominant and the sub-dominants, the dominant first."""
        return (self.dominant, *self.sub_dominants)


def roots(graph: StitchGraph) -> Iterator[Operator]:
    """Yield the candidates that a planner places: the reductions and outputs of a graph, producers first."""
    outputs = {t.producer for t in graph.outputs}
    return (op for op in graph.operators if op.is_reduce or op in outputs)


def costly_broadcasts(graph: StitchGraph) -> list[Operator]:
    """Return the operators with a value that takes a heavy operator and is broadcast along rows, in order of
    reading."""
    broadcasts: dict[Operator, None] = {}
    heavy_below: dict[Tensor, bool] = {}
    for op in graph.operators:
        heavy_below[op.output] = op.op_class is OpClass.HEAVY or any(
            heavy_below.get(t, False) for t in op.inputs
        )
        for a in op.accesses:
            if a.span is Span.LEADING and heavy_below.get(a.tensor, False) and a.tensor.producer is not None:
                broadcasts[a.tensor.producer] = None
    return list(broadcasts)


def merge(
    operators: Sequence[Operator],
    candidates: Collection[Operator],
    local: Iterable[tuple[Operator, Operator]],
    choose: Choice,
) -> list[Group]:
    """Merge operators that Local edges connect into groups, and choose a dominant of each.

    Args:
        operators: all operators to group, producers first.
        candidates: the operators that may dominate. Every operator must be connected to one.
        local: readers with producers whose values they read through Local edges: a thread that evaluates the reader
            has the elements that it reads.
        choose: picks the dominant of a group.
    """
    leader = {op: op for op in operators}

    def find(op: Operator) -> Operator:
        while leader[op] is not op:
            leader[op] = leader[leader[op]]
            op = leader[op]
        return op

    for reader, producer in local:
        leader[find(reader)] = find(producer)
    merged: dict[Operator, list[Operator]] = {}
    for op in operators:
        merged.setdefault(find(op), []).append(op)
    return [_group(members, candidates, choose) for members in merged.values()]


def _group(
    members: Sequence[Operator],
    candidates: Collection[Operator],
    choose: Choice,
) -> Group:
    own = [op for op in members if op in candidates]
    dominant = choose(own)
    return Group(dominant, tuple(op for op in own if op is not dominant), tuple(members))


def dominant_groups(graph: StitchGraph, preferred: Collection[str] = ()) -> list[Group]:
    """Merge the candidates of a graph that is not mapped yet, by its element-level dependencies.

    Args:
        graph: a stitch op's graph.
        preferred: names of candidates to make the dominants of their groups.
    """
    costly = costly_broadcasts(graph)
    spread = {*graph.reduces, *costly}
    needed, own = _needed(graph), set(graph.operators)
    local = [
        (op, producer)
        for op in needed
        for access in op.accesses
        if (producer := access.tensor.producer) is not None and producer in own
        if not (producer in spread and _spreads(op, access))
    ]
    return merge(needed, {*roots(graph), *spread}, local, by_preference(preferred, costly))


def _spreads(op: Operator, access: Access) -> bool:
    """Return whether an operator reads the same element for several of its own."""
    return op.dependency(access) in (Dependency.ONE_TO_MANY, Dependency.GENERAL)


def by_preference(preferred: Collection[str], broadcast: Sequence[Operator]) -> Choice:
    """Return the choice of dominants: by name, else a reduction, else a broadcast value, else the last output."""

    def choose(own: Sequence[Operator]) -> Operator:
        named = (op for op in own if op.name in preferred)
        reduces = (op for op in own if op.is_reduce)
        values = (op for op in broadcast if op in own)
        return next(chain(named, reduces, values, own[-1:]))

    return choose


def placing_order(graph: StitchGraph, preferred: Collection[str] = ()) -> list[Operator]:
    """Return the reductions and outputs in the order in which they are placed into stages: producers first.

    A ``preferred`` dominant comes before all candidates of its group on which it does not depend, so that it opens
    their stage.
    """
    placed = list(roots(graph))
    for group in dominant_groups(graph, preferred) if preferred else ():
        if group.dominant.name in preferred and group.dominant in placed:
            first = min(placed.index(op) for op in group.candidates if op in placed)
            behind = [i for i, op in enumerate(placed) if op in _below(group.dominant)]
            placed.remove(group.dominant)
            placed.insert(max([first, *(i + 1 for i in behind)]), group.dominant)
    return placed


def _below(op: Operator) -> set[Operator]:
    """Return the operators that an operator needs."""
    below: set[Operator] = set()
    left = [op]
    while left:
        producers = [t.producer for t in left.pop().inputs if t.producer is not None]
        left += [p for p in producers if p not in below]
        below.update(producers)
    return below


@dataclass(frozen=True)
class Lead:
    """A dominant whose mapping all groups of a graph may take over, and the rows that it asks for.

    ``flat``: the dominant is an output, and all elements are one row. ``dominant`` is None for a graph whose outputs
    are inputs.
    """

    dominant: Operator | None
    rows: Extent = 1
    flat: bool = False


def leads(graph: StitchGraph, preferred: Collection[str] = ()) -> list[Lead]:
    """Return the dominants that may say what a row is for all groups of a graph, best first.

    With reductions it is the first one that dominates a group: if it does not serve the others, no candidate does.
    Without reductions, rows pay if a costly value is broadcast along them. The value is then computed once a row.
    Rows of symbolic length may turn out to be short: they come after outputs, which make a single row of all
    elements. ``preferred`` dominants come before all others.
    """
    groups = dominant_groups(graph, preferred)
    order = {op: i for i, op in enumerate(graph.operators)}
    dominants = sorted((g.dominant for g in groups), key=order.__getitem__)
    best = next((op for op in dominants if op.is_reduce), None)
    if best is not None and not preferred:
        return [Lead(best, best.output.size)]
    costly = [op for op in costly_broadcasts(graph) if any(op in g.candidates for g in groups)]
    first = [
        Lead(op, op.output.size) if op.is_reduce or op in costly else Lead(op, flat=True)
        for op in dominants
        if op.name in preferred
    ]
    if graph.reduces:
        best = best or graph.reduces[0]
        return [*first, Lead(best, best.output.size)]
    values: list[Lead] = []
    for op in costly:
        if not any(same(op.output.size, lead.rows) for lead in values):
            values.append(Lead(op, op.output.size))
    known = [v for v in values if all(isinstance(quotient(t.size, v.rows), int) for t in graph.outputs)]
    symbolic = [v for v in values if v not in known]
    outputs = {t.producer for t in graph.outputs}
    last = next((op for op in reversed(graph.operators) if op in outputs), None)
    return [*first, *known, Lead(last, flat=True), *symbolic]


def _needed(graph: StitchGraph) -> list[Operator]:
    """Return the operators that outputs and reductions need, producers first."""
    wanted = set(graph.outputs)
    for op in reversed(graph.operators):
        if op.is_reduce or op.output in wanted:
            wanted.update((op.output, *op.inputs))
    return [op for op in graph.operators if op.output in wanted]
