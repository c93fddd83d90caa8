# SPDX-License-Identifier: Apache-2.0
"""Finalise a plan: the groups of its stages and the scheme of every operator (AStitch 4.3, step 3).

Dominants say what a row is, and alignment propagates their mapping. The propagated points then say which values a
thread has where it reads them: edges between such values are Local, and merge candidates into one group. All other
edges are one-to-many, and end at a dominant or a sub-dominant, whose value is Regional, Cluster or Global.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ..graph.classify import is_heavy
from ..graph.ir import Operator, Tensor
from .dominants import Group, by_preference, merge
from .gpu.mapping import CrossBlockReduction
from .iteration.domain import Point
from .kernel import KernelPlan, Scheme, Stage
from .slices import Slice


def finalised(plan: KernelPlan, preferred: Collection[str] = ()) -> KernelPlan:
    """Return the plan with the groups of its stages and the schemes of its operators.

    Args:
        plan: a plan of which all else is decided.
        preferred: names of operators to choose as the dominants of their groups.
    """
    grouped = {stage: replace(stage, groups=_groups(stage, preferred)) for stage in plan.stages}
    retention = plan.retention
    if retention is not None:
        retention = replace(retention, stages=tuple(grouped[stage] for stage in retention.stages))
    return replace(
        plan,
        phases=tuple(tuple(grouped[stage] for stage in stages) for stages in plan.phases),
        retention=retention,
        variants=tuple(
            replace(v, stage=replace(v.stage, groups=_groups(v.stage, preferred))) for v in plan.variants
        ),
        schemes=_schemes(plan),
    )


def _groups(stage: Stage, preferred: Collection[str]) -> tuple[Group, ...]:
    """Return the groups of a stage: its candidates, merged where Local values connect them.

    Candidates are the operators that the stage reduces and stores, and costly values that it evaluates once a row.
    Groups meet where columns read one of these values of their row. Operators that nothing needs are not evaluated
    and in no group. Examples are the other results of a split.
    """
    original = {copy: op for op, copy in stage.slice.copies.items()}
    shared = shared_in_rows(stage)
    regional = {op for op in stage.graph.operators if op.is_reduce} | shared
    evaluated = {op for op, _ in stage.alignment.reads}
    local = [
        (original[op], original[producer])
        for (op, at), reads in stage.alignment.reads.items()
        for access, point in zip(op.accesses, reads)
        if (producer := access.tensor.producer) is not None and producer in evaluated
        if not (producer in regional and _spreads(at, point))
    ]
    members = [op for op, copy in stage.slice.copies.items() if copy in evaluated]
    candidates = {op for op in members if op in stage.slice.roots or stage.slice.copies[op] in regional}
    leading = [op for op in members if op is stage.slice.dominant and stage.slice.copies[op] in shared]
    return tuple(merge(members, candidates, local, by_preference(preferred, leading)))


def shared_in_rows(stage: Stage) -> set[Operator]:
    """Return the operators, of a stage's own graph, that it evaluates once a row for all columns that read them.

    They are heavy, except for the stage's dominant, which may be a light operator behind a heavy one.
    """
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
    dominant = stage.slice.copies.get(stage.slice.dominant) if stage.slice.dominant is not None else None
    return {op for op in once if op in read and (op is dominant or is_heavy(op.value))}


def _spreads(at: Point, point: Point | None) -> bool:
    """Return whether all columns of a row read, at ``point``, the same element."""
    return at.per_column and point is not None and not point.per_column


def _schemes(plan: KernelPlan) -> dict[Operator, Scheme]:
    """Return the scheme of every operator of ``plan.graph``.

    Reductions and heavy values that several elements read are Regional if a row stays in its block. Reductions that
    the blocks of a cluster combine, outputs among them, are Cluster. Values that blocks combine through device
    memory, and those that another stage reads there, are Global. A heavy value that every reader computes again is
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
    """Return the values of the graph that a stage reads without computing them: they come through device memory."""
    computed = {op.output for op in plan.graph.operators}
    return {t for stage in plan.stages for t in _read_tensors(stage.slice) if t in computed}


def _read_tensors(piece: Slice) -> list[Tensor]:
    """Return the tensors that a slice reads from device memory: of the whole graph, and partial results."""
    inside = {op.output for op in piece.copies}
    return list(dict.fromkeys(t for op in piece.copies for t in op.inputs if t not in inside))
