# SPDX-License-Identifier: Apache-2.0
"""The checks of groups and schemes name each fault that is planted in a good plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stitch_testing.stitch_graphs import stitch_graph
from tests.graph.helpers import H200
from tvm_stitch.plan.choose import choose_plan
from tvm_stitch.plan.dominants import Group
from tvm_stitch.plan.iteration.domain import Domain
from tvm_stitch.plan.kernel import KernelPlan, Scheme, Stage
from tvm_stitch.plan.verify import problems
from tvm_stitch.testing.workloads import grid_cases


def figure7() -> KernelPlan:
    return choose_plan(stitch_graph(grid_cases.figure7(4096, 1024, 8192).build()), H200)


def with_groups(plan: KernelPlan, *groups: Group) -> KernelPlan:
    """Return the plan with other groups in its first stage."""
    first, *rest = plan.phases
    stage: Stage = replace(first[0], groups=groups)
    return replace(plan, phases=((stage, *first[1:]), *rest))


def lost(plan: KernelPlan) -> KernelPlan:
    (group,) = plan.phases[0][0].groups
    return with_groups(plan, replace(group, members=group.members[1:]))


def doubled(plan: KernelPlan) -> KernelPlan:
    (group,) = plan.phases[0][0].groups
    return with_groups(plan, group, group)


def light(plan: KernelPlan) -> KernelPlan:
    """Let an operator of columns dominate that no stage stores."""
    (group,) = plan.phases[0][0].groups
    add = next(op for op in group.members if op.name == "T_add")
    return with_groups(plan, replace(group, sub_dominants=(*group.sub_dominants, add)))


def demoted(plan: KernelPlan) -> KernelPlan:
    (group,) = plan.phases[0][0].groups
    return with_groups(plan, replace(group, sub_dominants=()))


def divided(plan: KernelPlan) -> KernelPlan:
    """Make two groups that meet at an operator that is no candidate."""
    (group,) = plan.phases[0][0].groups
    i = group.members.index(group.dominant)
    behind = Group(group.sub_dominants[0], (), group.members[i:])
    before = Group(group.members[0], (), group.members[:i])
    return with_groups(plan, before, replace(behind, sub_dominants=(group.dominant,)))


def elsewhere(plan: KernelPlan) -> KernelPlan:
    first, *rest = plan.phases
    found = replace(first[0].slice, dominant=plan.phases[-1][0].groups[0].dominant)
    return replace(plan, phases=((replace(first[0], slice=found), *first[1:]), *rest))


def longer(plan: KernelPlan) -> KernelPlan:
    first, *rest = plan.phases
    found = replace(first[0].slice, domain=Domain(4095))
    return replace(plan, phases=((replace(first[0], slice=found), *first[1:]), *rest))


def nowhere(plan: KernelPlan) -> KernelPlan:
    return replace(plan, schemes=dict(list(plan.schemes.items())[1:]))


def regional(plan: KernelPlan) -> KernelPlan:
    return replace(plan, schemes=dict.fromkeys(plan.schemes, Scheme.REGIONAL))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lost, "is in 0 groups of a stage of phase 0"),
        (doubled, "is in 2 groups of a stage of phase 0"),
        (light, "neither stores it nor shares it"),
        (demoted, "which is not a candidate of a group"),
        (divided, "which is not a candidate of its group"),
        (elsewhere, "has its rows from"),
        (longer, "has 4095 rows, and its dominant"),
        (nowhere, "has no scheme"),
        (regional, "of another stage, and its scheme is Regional"),
    ],
)
def test_a_planted_fault_is_named(change: Callable[[KernelPlan], KernelPlan], fault: str) -> None:
    plan = figure7()
    assert problems(plan) == []
    assert any(fault in line for line in problems(change(plan)))
