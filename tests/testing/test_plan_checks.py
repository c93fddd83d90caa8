# SPDX-License-Identifier: Apache-2.0
"""The checks of plans see what they are there for: each fault planted in a good plan is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tvm.relax import op as R

from tests.graph.helpers import H200, build, grid_plan
from tvm_stitch.config import StitchConfig
from tvm_stitch.plan.kernel import KernelPlan, Scratch, Stage
from tvm_stitch.testing import grid_cases
from tvm_stitch.testing.plan_checks import plan_problems, stitch_graph


def figure7() -> KernelPlan:
    return grid_plan(stitch_graph(grid_cases.figure7(4096, 1024, 8192).build()), H200)


def with_part(plan: KernelPlan, phase: int, part: Stage) -> KernelPlan:
    """The plan with another first part of a phase."""
    phases = [[part, *parts[1:]] if f == phase else parts for f, parts in enumerate(plan.phases)]
    return replace(plan, phases=phases)


def early(plan: KernelPlan) -> KernelPlan:
    """The second phase's part in the first, beside the part that makes what it reads."""
    (part,) = plan.phases[1]
    moved = replace(part, slice=replace(part.slice, phase=0))
    return replace(plan, phases=[[*plan.phases[0], moved], [], *plan.phases[2:]])


def unwritten(plan: KernelPlan) -> KernelPlan:
    """A value that is read by another part, and not stored any more."""
    part = plan.phases[0][0]
    return with_part(plan, 0, replace(part, slice=replace(part.slice, stored=frozenset())))


def twice(plan: KernelPlan) -> KernelPlan:
    """An output that two phases write."""
    part, again = plan.phases[2][0], plan.phases[3][0].slice.stored
    return with_part(plan, 2, replace(part, slice=replace(part.slice, stored=part.slice.stored | again)))


def shared(plan: KernelPlan) -> KernelPlan:
    """Two values of one phase in one buffer."""
    a, *_, b = plan.place
    return replace(plan, place={**plan.place, a: plan.place[b]})


def tight(plan: KernelPlan) -> KernelPlan:
    """A buffer one element too small."""
    first, *others = plan.scratch
    smaller = Scratch(first.name, (int(str(first.shape[0])) - 1,), first.dtype)
    return replace(plan, scratch=[smaller, *others])


def crowded(plan: KernelPlan) -> KernelPlan:
    """A block more than the device holds."""
    per_sm = 2048 // plan.shared_grid.threads
    return replace(
        plan, grid=replace(plan.shared_grid, blocks_per_sm=per_sm, blocks=per_sm * plan.device.sms + 1)
    )


def short(plan: KernelPlan) -> KernelPlan:
    """A group of rows that nobody takes."""
    part = plan.phases[0][0]
    return with_part(plan, 0, replace(part, tasks=part.tasks - 1))


def narrow(plan: KernelPlan) -> KernelPlan:
    """A block less than there are partial results."""
    part = plan.phases[1][0]
    return with_part(plan, 1, replace(part, stride=part.stride - 1))


def unfinished(plan: KernelPlan) -> KernelPlan:
    """The last reduction over fewer partial results than there are."""
    (part,) = plan.phases[2]
    (last,) = [op for op in part.slice.roots if op.is_reduce]
    last.reduce[0].extent = int(str(last.reduce[0].extent)) - 1
    return plan


def out_of_turn(plan: KernelPlan) -> KernelPlan:
    """Parts that every block evaluates, before what they read."""
    made = next(t for t in plan.place if any(t in part.slice.tensors for part in plan.phases[1]))
    return replace(plan, crossing=replace(plan.crossing, shared={**plan.crossing.shared, made: 1}))


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (early, "which is ready in phase"),
        (out_of_turn, "before every block has evaluated it"),
        (unwritten, "which nothing writes"),
        (twice, "is written 2 times"),
        (shared, "live in"),
        (tight, "does not fit"),
        (crowded, "are resident"),
        (short, "rows"),
        (narrow, "partial results from"),
        (unfinished, "is finished from"),
    ],
)
def test_planted_faults_are_named(plant: Callable[[KernelPlan], KernelPlan], told: str) -> None:
    plan = figure7()
    assert plan_problems(plan) == []
    assert [line for line in plan_problems(plant(plan)) if told in line]


def test_a_device_without_cooperative_launches_gets_no_barriers() -> None:
    plan = figure7()
    plain = replace(plan, device=replace(H200, cooperative=False))
    assert [line for line in plan_problems(plain) if "cooperative" in line]


def test_modules_of_several_stitch_ops_are_refused() -> None:

    def body(emit: Any, x: Any) -> Any:
        for op in (R.exp, R.tanh, R.negative, R.sigmoid):
            x = emit(op(x))
        return [x]

    with pytest.raises(ValueError, match="use stitch_graphs"):
        stitch_graph(build(body, ((16, 24), "float32")), StitchConfig(max_operators=2))
