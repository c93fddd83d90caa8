# SPDX-License-Identifier: Apache-2.0
"""The checks of plans see what they are there for: each fault planted in a good plan is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import tvm_stitch
from stitch_testing.stitch_graphs import stitch_graph
from tests.graph.helpers import H200, graph, graphs, grid_plan
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import DeviceModel, device_model
from tvm_stitch.graph.extent import ByExtent
from tvm_stitch.plan import choose
from tvm_stitch.plan.choose import choose_plan
from tvm_stitch.plan.cpu.segments import Segment
from tvm_stitch.plan.cpu.tile import Lanes
from tvm_stitch.plan.gpu.mapping import CrossBlockReduction
from tvm_stitch.plan.in_block import plan_in_block
from tvm_stitch.plan.iteration.loops import RowLoop
from tvm_stitch.plan.kernel import KernelPlan, Scratch, Stage
from tvm_stitch.plan.shared_memory import with_mapping
from tvm_stitch.plan.verify import problems
from tvm_stitch.support.errors import StitchError
from tvm_stitch.target import resolve_target
from tvm_stitch.testing.workloads import cases, grid_cases

CPU = device_model(resolve_target("llvm"))


def figure7() -> KernelPlan:
    return grid_plan(stitch_graph(grid_cases.figure7(4096, 1024, 8192).build()), H200)


def with_part(plan: KernelPlan, phase: int, part: Stage) -> KernelPlan:
    """Return the plan with another first part of a phase."""
    phases = [[part, *parts[1:]] if f == phase else parts for f, parts in enumerate(plan.phases)]
    return replace(plan, phases=phases)


def early(plan: KernelPlan) -> KernelPlan:
    """Put the second phase's part into the first, next to the part that makes what it reads."""
    (part,) = plan.phases[1]
    moved = replace(part, slice=replace(part.slice, phase=0))
    return replace(plan, phases=[[*plan.phases[0], moved], [], *plan.phases[2:]])


def unwritten(plan: KernelPlan) -> KernelPlan:
    """Stop storing a value that another part reads."""
    part = plan.phases[0][0]
    return with_part(plan, 0, replace(part, slice=replace(part.slice, stored=frozenset())))


def twice(plan: KernelPlan) -> KernelPlan:
    """Let two phases write an output."""
    part, again = plan.phases[2][0], plan.phases[3][0].slice.stored
    return with_part(plan, 2, replace(part, slice=replace(part.slice, stored=part.slice.stored | again)))


def shared(plan: KernelPlan) -> KernelPlan:
    """Put two values of one phase into one buffer."""
    a, *_, b = plan.scratch_of
    return replace(plan, scratch_of={**plan.scratch_of, a: plan.scratch_of[b]})


def tight(plan: KernelPlan) -> KernelPlan:
    """Make a buffer one element too small."""
    first, *others = plan.scratch
    smaller = Scratch(first.name, (int(str(first.shape[0])) - 1,), first.dtype)
    return replace(plan, scratch=[smaller, *others])


def crowded(plan: KernelPlan) -> KernelPlan:
    """Launch a block more than the device holds."""
    per_sm = 2048 // plan.shared_grid.threads
    return replace(
        plan, grid=replace(plan.shared_grid, blocks_per_sm=per_sm, blocks=per_sm * plan.device.sms + 1)
    )


def short(plan: KernelPlan) -> KernelPlan:
    """Leave a group of rows that nobody takes."""
    part = plan.phases[0][0]
    return with_part(plan, 0, replace(part, tasks=part.tasks - 1))


def narrow(plan: KernelPlan) -> KernelPlan:
    """Launch a block less than there are partial results."""
    part = plan.phases[1][0]
    return with_part(plan, 1, replace(part, stride=part.stride - 1))


def unfinished(plan: KernelPlan) -> KernelPlan:
    """Let the last reduction take fewer partial results than there are."""
    (part,) = plan.phases[2]
    (last,) = [op for op in part.slice.roots if op.is_reduce]
    last.reduce[0].extent = int(str(last.reduce[0].extent)) - 1
    return plan


def out_of_turn(plan: KernelPlan) -> KernelPlan:
    """Parts that every block evaluates, before what they read."""
    made = next(t for t in plan.scratch_of if any(t in part.slice.tensors for part in plan.phases[1]))
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
    assert problems(plan) == []
    assert [line for line in problems(plant(plan)) if told in line]


def test_a_device_without_cooperative_launches_gets_no_barriers() -> None:
    plan = figure7()
    plain = replace(plan, device=replace(H200, cooperative=False))
    assert [line for line in problems(plain) if "cooperative" in line]


# -- plans of one stage --------------------------------------------------------------------------------------
def softmax(rows: int, columns: int, device: DeviceModel = H200) -> KernelPlan:
    return choose_plan(graph(cases.softmax(rows, columns).build()), device)


def with_stage(plan: KernelPlan, **changed: Any) -> KernelPlan:
    return replace(plan, phases=((replace(plan.stage, **changed),),))


def mapped(plan: KernelPlan, **changed: Any) -> KernelPlan:
    return with_mapping(plan, replace(plan.stage.mapping, **changed))


def with_passes(plan: KernelPlan, passes: list[RowLoop]) -> KernelPlan:
    return with_stage(plan, schedule=replace(plan.stage.schedule, passes=passes))


def backwards(plan: KernelPlan) -> KernelPlan:
    return with_passes(plan, list(plan.stage.schedule.passes)[::-1])


def at_once(plan: KernelPlan) -> KernelPlan:
    """Put the sum into the pass of the maximum, which its exponentials need."""
    passes = [replace(p, level=0) for p in plan.stage.schedule.passes]
    return with_passes(plan, passes)


def without_output(plan: KernelPlan) -> KernelPlan:
    return with_passes(plan, [replace(p, outputs=[]) for p in plan.stage.schedule.passes])


def shorter(plan: KernelPlan) -> KernelPlan:
    """Columns that no thread has."""
    ((extent, m),) = plan.stage.row_mapping.columns.items()
    return mapped(plan, columns=ByExtent([(extent, replace(m, vector=1))]))


def uneven(plan: KernelPlan) -> KernelPlan:
    """Segments of 7 in rows of 512 columns."""
    return mapped(plan, inner=ByExtent([(512, Segment(7, (0, 7)))]))


def cut_wrongly(plan: KernelPlan) -> KernelPlan:
    return mapped(plan, inner=ByExtent([(512, Segment(512, (0, 600, 512)))]))


@pytest.mark.parametrize(
    "plan", [softmax(64, 512), softmax(2, 4_000_000), softmax(64, 100_000), softmax(64, 512, CPU)]
)
@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (backwards, "out of order"),
        (at_once, "before it is there"),
        (without_output, "makes T_divide 0 times"),
    ],
)
def test_loops_make_all_that_a_stage_is_for_in_an_order_that_works(
    plan: KernelPlan, plant: Callable[[KernelPlan], KernelPlan], told: str
) -> None:
    assert problems(plan) == []
    assert [line for line in problems(plant(plan)) if told in line]


@pytest.mark.parametrize(
    ("plan", "changed", "told"),
    [
        (softmax(64, 512), {"threads": 2048}, "blocks of 2048 threads exceed 1024"),
        (softmax(64, 512), {"threads": 96}, "not a power of two"),
        (softmax(64, 512), {"exchange": CrossBlockReduction.CLUSTER}, "1 blocks a row"),
        (softmax(64, 100_000), {"exchange": CrossBlockReduction.NONE}, "their exchange is none"),
        (softmax(64, 100_000), {"row_splits": 32}, "clusters of 32 blocks"),
        (softmax(64, 100_000), {"rows_per_block": 2}, "2 rows a block"),
        (softmax(64, 40_000), {"threads": 1}, "1 threads a row exchange nothing"),
        (softmax(2, 4_000_000), {"rows_per_block": 2}, "2 rows a block"),
        (softmax(2, 4_000_000), {"row_splits": 134}, "are not resident"),
        (softmax(2, 4_000_000), {"row_splits": 131}, "other partial results"),
        (softmax(64, 512, CPU), {"lanes": Lanes.ROWS, "strip": 40}, "not a multiple of 32"),
        (softmax(64, 512, CPU), {"rows_per_task": 0}, "holds nothing"),
    ],
)  # fmt: skip
def test_planted_faults_of_mappings_are_named(plan: KernelPlan, changed: dict[str, Any], told: str) -> None:
    assert problems(plan) == []
    assert [line for line in problems(mapped(plan, **changed)) if told in line]


@pytest.mark.parametrize(
    ("plant", "device", "told"),
    [
        (shorter, H200, "columns"),
        (uneven, CPU, "segments of 7 do not divide 512 columns"),
        (cut_wrongly, CPU, "is cut at"),
    ],
)
def test_every_column_is_somebodys(
    plant: Callable[[KernelPlan], KernelPlan], device: DeviceModel, told: str
) -> None:
    plan = softmax(64, 512, device)
    assert [line for line in problems(plant(plan)) if told in line]


def test_a_mapping_is_for_the_kind_of_device_that_the_plan_is_for() -> None:
    plan = replace(softmax(64, 512), device=CPU)
    assert [line for line in problems(plan) if "another kind of device" in line]


def test_shared_memory_of_a_block_is_what_the_device_has() -> None:
    plan = softmax(64, 512)
    small = replace(plan, device=replace(H200, shared_per_block=8))
    assert [line for line in problems(small) if "of shared memory exceed 8" in line]


# -- a wrong plan costs its scope ----------------------------------------------------------------------------
def test_no_kernel_is_made_of_a_wrong_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = cases.softmax(64, 512).build()
    target = {"kind": "cuda", "arch": "sm_90"}

    def wrong(*args: Any) -> KernelPlan:
        return mapped(plan_in_block(*args), threads=64)

    monkeypatch.setattr(choose, "plan_in_block", wrong)
    report = tvm_stitch.explain(mod, target)
    (reason,) = set(report.left.values())
    assert not report.kernels and "is wrong: " in reason
    assert "covers 256 of 512 columns" in reason and "a fault in tvm_stitch, at plan/verify.py" in reason
    with pytest.raises(StitchError, match="covers 256 of 512 columns"):
        tvm_stitch.explain(mod, target, StitchConfig(strict=True))


@pytest.mark.parametrize("device", [H200, CPU], ids=["cuda", "llvm"])
def test_the_plans_of_all_cases_are_right(device: DeviceModel) -> None:
    count = 0
    for case in [*cases.cases(), *cases.cases("test")]:
        for op_graph in graphs(case.build()):
            count += 1
            assert problems(choose_plan(op_graph, device)) == []
    assert count > 20
