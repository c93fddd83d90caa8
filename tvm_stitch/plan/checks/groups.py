# SPDX-License-Identifier: Apache-2.0
"""Check the groups and schemes of a plan, as ``verify`` checks the rest of it.

Every operator that a stage evaluates is in one group of the stage. Every group has one dominant. Groups meet at
dominants and sub-dominants. Each stage has its rows from a dominant of its own, or of a stage before it whose mapping
it takes over. The checks share no code with the planner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...graph.extent import product, same, text_of
from ...graph.ir import Operator
from ..kernel import KernelPlan, Scheme, Stage


def group_problems(plan: KernelPlan) -> Iterator[str]:
    """Yield everything that is wrong with the groups and schemes of a plan, one line each."""
    grouped: set[Operator] = set()  # members of the groups so far
    for f, stages in enumerate(plan.phases):
        for stage in stages:
            where = f"a stage of phase {f}"
            yield from _members(where, stage)
            yield from _candidates(where, stage)
            grouped |= {op for group in stage.groups for op in group.members}
            if stage.groups and stage.slice.dominant not in grouped:
                name = stage.slice.dominant.name if stage.slice.dominant else "no operator"
                yield f"{where} has its rows from {name}, which no stage up to there evaluates"
            yield from _rows(where, stage)
    for v in plan.variants:
        yield from _members(f"a variant of at most {v.longest} columns", v.stage)
    yield from _schemes(plan)


def _rows(where: str, stage: Stage) -> Iterator[str]:
    """Check that a stage has a row for each result of its dominant, or for each element of one result across rows."""
    piece, dominant = stage.slice, stage.slice.dominant
    if dominant is None or dominant not in piece.copies or piece.domain.flat:
        return
    if dominant in piece.cross_row:
        rows = product(axis.extent for axis in dominant.reduce)
    elif dominant.is_reduce or dominant not in piece.roots:
        rows = dominant.output.size
    else:  # an output, whose elements are shared out over rows of any length
        return
    if not same(rows, piece.domain.rows):
        yield f"{where} has {text_of(piece.domain.rows)} rows, and its dominant {dominant.name} {text_of(rows)}"


def _members(where: str, stage: Stage) -> Iterator[str]:
    """Check that every operator that a stage evaluates is in one group, and that groups meet at candidates."""
    known = {op for op, _ in stage.alignment.reads}
    evaluated = {op for op, copy in stage.slice.copies.items() if copy in known}
    times = Counter(op for group in stage.groups for op in group.members)
    for op in evaluated | set(times):
        if times[op] != (op in evaluated):
            yield f"{op.name} is in {times[op]} groups of {where}"
    home = {op: group for group in stage.groups for op in group.members}
    producer = {op.output: op for op in home}
    for op, group in home.items():
        for other in (producer[t] for t in op.inputs if t in producer):
            if home[other] is not group and other not in home[other].candidates:
                yield f"{op.name} of {where} reads {other.name}, which is not a candidate of its group"


def _candidates(where: str, stage: Stage) -> Iterator[str]:
    """Check that dominants and sub-dominants are reduced, stored or shared by a row's columns, each in one group."""
    times = Counter(op for group in stage.groups for op in group.candidates)
    home = {op: group for group in stage.groups for op in group.members}
    for op in set(stage.slice.roots) - set(times):
        yield f"{where} computes {op.name}, which is not a candidate of a group"
    columns = {op for op, point in stage.alignment.reads if point.per_column}
    for op, count in times.items():
        if count != 1 or op not in home or op not in home[op].candidates:
            yield f"{op.name} is a candidate of {where}, but not of one group that has it"
        elif op not in stage.slice.roots and (op.is_reduce or stage.slice.copies[op] in columns):
            yield f"{op.name} is a candidate of {where}, which neither stores it nor shares it in a row"


def _schemes(plan: KernelPlan) -> Iterator[str]:
    """Check that every operator has a scheme, and that a value that another stage reads is Global."""
    computed = {op.output: op for op in plan.graph.operators}
    for op in plan.graph.operators:
        if op not in plan.schemes:
            yield f"{op.name} has no scheme"
    for f, stages in enumerate(plan.phases):
        for stage in stages:
            inside = {op.output for op in stage.slice.copies}
            read = {t for op in stage.slice.copies for t in op.inputs if t in computed and t not in inside}
            for op in (computed[t] for t in read):
                if op in plan.schemes and plan.schemes[op] is not Scheme.GLOBAL:
                    yield f"phase {f} reads {op.name} of another stage, and its scheme is {plan.schemes[op].value}"
