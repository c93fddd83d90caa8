# SPDX-License-Identifier: Apache-2.0
"""The checks of plans see what they are there for: each fault planted in a good plan is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tvm.relax import op as R

from tests.graph.helpers import H200, build
from tvm_stitch.config import StitchConfig
from tvm_stitch.plan.grid import make_grid_plan
from tvm_stitch.plan.grid_plan import GridPlan
from tvm_stitch.plan.scratch import Scratch
from tvm_stitch.testing import grid_cases
from tvm_stitch.testing.plan_checks import plan_problems, stitch_graph


def figure7() -> GridPlan:
    return make_grid_plan(stitch_graph(grid_cases.figure7(4096, 1024, 8192).build()), H200)


def early(plan: GridPlan) -> None:
    """The second phase's part in the first, beside the part that makes what it reads."""
    (part,) = plan.phases[1]
    plan.phases[1].remove(part)
    plan.phases[0].append(part)
    part.part.phase = 0


def unwritten(plan: GridPlan) -> None:
    """A value that is read by another part, and not stored any more."""
    plan.phases[0][0].part.stored.clear()


def twice(plan: GridPlan) -> None:
    """An output that two phases write."""
    plan.phases[2][0].part.stored |= plan.phases[3][0].part.stored


def shared(plan: GridPlan) -> None:
    """Two values of one phase in one buffer."""
    a, *_, b = plan.place
    plan.place[a] = plan.place[b]


def tight(plan: GridPlan) -> None:
    """A buffer one element too small."""
    first = plan.scratch[0]
    plan.scratch[0] = Scratch(first.name, (int(str(first.shape[0])) - 1,), first.dtype)


def crowded(plan: GridPlan) -> None:
    """A block more than the device holds."""
    plan.blocks += 1
    plan.blocks_per_sm = 2048 // plan.threads
    plan.blocks = plan.blocks_per_sm * plan.device.sms + 1


def short(plan: GridPlan) -> None:
    """A group of rows that nobody takes."""
    plan.phases[0][0].tasks -= 1


def narrow(plan: GridPlan) -> None:
    """A block less than there are partial results."""
    plan.phases[1][0].stride -= 1


def unfinished(plan: GridPlan) -> None:
    """The last reduction over fewer partial results than there are."""
    (part,) = plan.phases[2]
    (last,) = [op for op in part.part.roots if op.is_reduce]
    last.reduce[0].extent = int(str(last.reduce[0].extent)) - 1


def out_of_turn(plan: GridPlan) -> None:
    """Parts that every block evaluates, before what they read."""
    made = next(t for t in plan.place if any(t in part.part.tensors for part in plan.phases[1]))
    plan.partition.shared[made] = 1


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
def test_planted_faults_are_named(plant: Callable[[GridPlan], None], told: str) -> None:
    plan = figure7()
    assert plan_problems(plan) == []
    plant(plan)
    assert [line for line in plan_problems(plan) if told in line]


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
