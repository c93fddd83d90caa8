# SPDX-License-Identifier: Apache-2.0
"""Dominant operators, merging and groups (AStitch 4.3, step 1), and the scheme of every operator (section 3)."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ..graph.classify import is_heavy
from ..graph.ir import Access, Dependency, Operator, StitchGraph


class Scheme(enum.Enum):
    """Where an operator's result lives for its consumers."""

    INDEPENDENT = "Independent"
    LOCAL = "Local"
    REGIONAL = "Regional"


@dataclass
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


def candidates(graph: StitchGraph) -> list[Operator]:
    """Reduces, heavy element-wise operators followed by a broadcast, and outputs."""
    outputs = {t.producer for t in graph.outputs}
    return [
        op
        for op in graph.operators
        if op.is_reduce or op in outputs or (is_heavy(op.value) and one_to_many_consumers(op))
    ]


def group(graph: StitchGraph) -> list[Group]:
    """Merge candidates that Local operators connect; a reduce is preferred as the dominant."""
    found = candidates(graph)
    shared = {op for op in found if op.is_reduce or is_heavy(op.value)}
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
    """The scheme of every operator of an in-block plan.

    Every consumer works on the rows of the block that produced a value (the alignment saw to it), so one-to-many
    results of candidates are Regional: through shared memory, or through shuffles where a row is within a warp.
    """
    found = set(candidates(graph))
    result = {}
    for op in graph.operators:
        if not op.output.consumers:
            result[op] = Scheme.INDEPENDENT
        elif op in found and (op.is_reduce or (is_heavy(op.value) and one_to_many_consumers(op))):
            result[op] = Scheme.REGIONAL
        else:
            result[op] = Scheme.LOCAL
    return result
