# SPDX-License-Identifier: Apache-2.0
"""Groups and stitching schemes, read off a finished plan (AStitch 3 and 4.3).

Both follow from what the emitters are told: which operators a stage computes (its slice), what it evaluates once a row
(its loop nest), and what crosses between blocks. So they change with the plan, and with nothing else.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ..graph.classify import is_heavy
from ..graph.ir import Operator, Tensor
from .gpu.mapping import CrossBlockReduction
from .iteration.domain import Point
from .kernel import KernelPlan, Stage
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
    """A dominant, the sub-dominants merged with it, and all operators of its stage that follow its mapping.

    Operators of the whole graph, and what finishes its reductions across rows, producers first.
    """

    dominant: Operator
    sub_dominants: tuple[Operator, ...]
    members: tuple[Operator, ...]


def groups(stage: Stage) -> list[Group]:
    """The groups of a stage: its candidates, merged where Local values connect them.

    Candidates are what the stage reduces and stores, and heavy values that it evaluates once a row. Groups meet where
    columns read one of these values of their row. A reduction is preferred as the dominant. What nothing needs, such as
    the other results of a split, is not evaluated and in no group.
    """
    regional = {op for op in stage.graph.operators if op.is_reduce} | shared_in_rows(stage)
    leader: dict[Operator, Operator] = {op: op for op, _ in stage.alignment.reads}

    def find(op: Operator) -> Operator:
        while leader[op] is not op:
            leader[op] = leader[leader[op]]
            op = leader[op]
        return op

    for (op, at), reads in stage.alignment.reads.items():
        for access, point in zip(op.accesses, reads):
            producer = access.tensor.producer
            if producer in leader and producer is not None:
                if not (producer in regional and _spreads(at, point)):
                    leader[find(op)] = find(producer)
    merged: dict[Operator, list[Operator]] = {}
    for original, copy in stage.slice.copies.items():
        if copy in leader:
            merged.setdefault(find(copy), []).append(original)
    return [_group(stage.slice, regional, members) for members in merged.values()]


def _group(found: Slice, regional: set[Operator], members: list[Operator]) -> Group:
    candidates = [op for op in members if op in found.roots or found.copies[op] in regional]
    dominant = next((op for op in candidates if op.is_reduce), candidates[-1])
    return Group(dominant, tuple(op for op in candidates if op is not dominant), tuple(members))


def shared_in_rows(stage: Stage) -> set[Operator]:
    """The heavy operators, of a stage's own graph, that it evaluates once a row for all columns that read them."""
    if stage.alignment.domain.flat:
        return set()
    sched = stage.schedule
    once = {op for p in sched.passes for op, _ in p.row_values} | {op for op, _ in sched.final_values}
    once -= {op for op, at in stage.alignment.reads if at.per_column}
    read = {
        access.tensor.producer
        for (op, at), reads in stage.alignment.reads.items()
        for access, point in zip(op.accesses, reads)
        if _spreads(at, point)
    }
    return {op for op in once if op in read and is_heavy(op.value)}


def _spreads(at: Point, point: Point | None) -> bool:
    """Do all columns of a row read, at ``point``, the same element?"""
    return at.per_column and point is not None and not point.per_column


def schemes(plan: KernelPlan) -> dict[Operator, Scheme]:
    """The scheme of every operator of ``plan.graph``, as the plan carries it out.

    Reductions and heavy values that several elements read are Regional where a row stays in its block. Reductions that
    the blocks of a cluster put together, outputs among them, are Cluster; what blocks put together through device
    memory, and what another stage reads there, are Global. A heavy value that is computed again wherever it is read is
    Local.
    """
    crossing, stages = crossing_tensors(plan), plan.stages
    in_cluster = any(stage.exchange is CrossBlockReduction.CLUSTER for stage in stages)
    shared = {stage: shared_in_rows(stage) for stage in stages}

    def scheme(op: Operator) -> Scheme:
        if op in plan.crossing.partials or op.output in crossing:
            return Scheme.GLOBAL
        if op.is_reduce and in_cluster:
            return Scheme.CLUSTER
        if not op.output.consumers:
            return Scheme.INDEPENDENT
        if op.is_reduce or any(stage.slice.copies.get(op) in shared[stage] for stage in stages):
            return Scheme.REGIONAL
        return Scheme.LOCAL

    return {op: scheme(op) for op in plan.graph.operators}


def crossing_tensors(plan: KernelPlan) -> set[Tensor]:
    """The values of the graph that a stage reads without computing them: they come through device memory."""
    made = {op.output for op in plan.graph.operators}
    return {t for stage in plan.stages for t in read_tensors(stage.slice) if t in made}


def read_tensors(found: Slice) -> list[Tensor]:
    """What a slice reads from device memory: tensors of the whole graph, and partial results."""
    inside = {op.output for op in found.copies}
    return list(dict.fromkeys(t for op in found.copies for t in op.inputs if t not in inside))
