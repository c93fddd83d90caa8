# SPDX-License-Identifier: Apache-2.0
"""Dominant operators, merging and groups (AStitch 4.3, step 1), and the scheme of every operator (section 3).

Groups follow from the graph alone. Schemes are final only when a plan says where each value is made and read
(``final_schemes``; step 3 of the paper).
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass

from ..graph.classify import is_heavy
from ..graph.ir import Access, Dependency, Operator, StitchGraph, Tensor
from .gpu.tile import CrossBlockReduction
from .iteration.alignment import Alignment
from .kernel import KernelPlan
from .slices import Slice


class Scheme(enum.Enum):
    """Where an operator's result lives for its consumers."""

    INDEPENDENT = "Independent"
    LOCAL = "Local"
    REGIONAL = "Regional"
    CLUSTER = "Cluster"
    GLOBAL = "Global"


@dataclass(frozen=True)
class Group:
    """A dominant, the sub-dominants merged with it, and all operators their mapping is propagated to."""

    dominant: Operator
    sub_dominants: list[Operator]
    members: list[Operator]


def one_to_many_consumers(op: Operator) -> list[Operator]:
    """The consumers that read each element of ``op``'s result for several of theirs."""
    found = []
    for c in op.output.consumers:
        if any(a.tensor is op.output and _spreads(c, a) for a in c.accesses):
            found.append(c)
    return found


def _spreads(consumer: Operator, access: Access) -> bool:
    return consumer.dependency(access) is Dependency.ONE_TO_MANY


def candidates(graph: StitchGraph, crossing: Collection[Tensor] = ()) -> list[Operator]:
    """Reduces, heavy element-wise operators followed by a broadcast, outputs, and what makes ``crossing`` values."""
    outputs = {t.producer for t in graph.outputs}
    return [
        op
        for op in graph.operators
        if op.is_reduce
        or op in outputs
        or op.output in crossing
        or (is_heavy(op.value) and one_to_many_consumers(op))
    ]


def group(graph: StitchGraph, crossing: Collection[Tensor] = ()) -> list[Group]:
    """Merge candidates that Local operators connect; a reduce is preferred as the dominant.

    ``crossing`` are values that a plan passes through device memory (``crossing_tensors``): they are not Local, so
    groups meet there as well.
    """
    found = candidates(graph, crossing)
    shared = {op for op in found if op.is_reduce or is_heavy(op.value) or op.output in crossing}
    leader: dict[Operator, Operator] = {op: op for op in graph.operators}

    def find(op: Operator) -> Operator:
        while leader[op] is not op:
            leader[op] = leader[leader[op]]
            op = leader[op]
        return op

    for op in graph.operators:
        for a in op.accesses:
            producer = a.tensor.producer
            if producer is None or producer not in leader:
                continue
            if producer in shared and _spreads(op, a):
                continue  # groups meet at dominants and sub-dominants only
            leader[find(op)] = find(producer)
    members: dict[Operator, list[Operator]] = {}
    for op in graph.operators:
        members.setdefault(find(op), []).append(op)
    groups = []
    for ops in members.values():
        inside = [op for op in found if op in set(ops)]
        if not inside:
            continue
        dominant = next((op for op in inside if op.is_reduce), inside[-1])
        groups.append(Group(dominant, [op for op in inside if op is not dominant], ops))
    return groups


def schemes(graph: StitchGraph) -> dict[Operator, Scheme]:
    """The scheme of every operator if all consumers work on the rows of the block that produced a value.

    One-to-many results of candidates are Regional then: through shared memory, or through shuffles where a row is
    within a warp.
    """
    result = {}
    for op in graph.operators:
        if not op.output.consumers:
            result[op] = Scheme.INDEPENDENT
        elif op.is_reduce or (is_heavy(op.value) and one_to_many_consumers(op)):
            result[op] = Scheme.REGIONAL
        else:
            result[op] = Scheme.LOCAL
    return result


def final_schemes(plan: KernelPlan) -> dict[Operator, Scheme]:
    """The scheme of every operator of ``plan.graph``, as the plan carries it out.

    Reductions and heavy values that several elements read are Regional where a row stays in its block. Reductions that
    the blocks of a cluster put together, outputs among them, are Cluster; what blocks put together through device
    memory, and what another stage reads there, are Global. A heavy value that is computed again wherever it is read is
    Local.
    """
    crossing, stages = crossing_tensors(plan), plan.stages
    in_cluster = any(stage.exchange is CrossBlockReduction.CLUSTER for stage in stages)
    result = schemes(plan.graph)
    for op, scheme in result.items():
        if op in plan.crossing.partials or op.output in crossing:
            result[op] = Scheme.GLOBAL
        elif op.is_reduce and in_cluster:
            result[op] = Scheme.CLUSTER
        elif scheme is Scheme.REGIONAL and not op.is_reduce:
            copies = [(s.slice.copies[op], s.alignment) for s in stages if op in s.slice.copies]
            found = {_shared(copy, alignment) for copy, alignment in copies}
            result[op] = Scheme.REGIONAL if Scheme.REGIONAL in found else Scheme.LOCAL
    return result


def crossing_tensors(plan: KernelPlan) -> set[Tensor]:
    """The values of the graph that a stage reads without computing them: they come through device memory."""
    made = {op.output for op in plan.graph.operators}
    return {t for stage in plan.stages for t in read_tensors(stage.slice) if t in made}


def read_tensors(found: Slice) -> list[Tensor]:
    """What a slice reads from device memory: tensors of the whole graph, and partial results."""
    inside = {op.output for op in found.copies}
    return list(dict.fromkeys(t for op in found.copies for t in op.inputs if t not in inside))


def _shared(op: Operator, alignment: Alignment) -> Scheme:
    """Regional where a row evaluates a heavy value once; Local where its columns compute it again."""
    points = [point for found, point in alignment.reads if found is op]
    once = not alignment.domain.flat and points and not any(point.per_column for point in points)
    return Scheme.REGIONAL if once else Scheme.LOCAL
