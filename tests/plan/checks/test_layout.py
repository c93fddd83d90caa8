# SPDX-License-Identifier: Apache-2.0
"""The checks of a plan's layout name each fault that is planted in a good plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stitch_testing.stitch_graphs import stitch_graph
from tests.graph.helpers import H200, build, graph, grid_plan
from tests.plan.strategies.test_async_copies import made as copied_rows
from tests.plan.strategies.test_async_copies import softmax
from tests.plan.strategies.test_transposed_loads import normalized
from tvm_stitch.plan.checks.layout import layout_problems
from tvm_stitch.plan.in_block import plan_in_block
from tvm_stitch.plan.kernel import KernelPlan
from tvm_stitch.plan.layout import SharedMemory, StageLayout
from tvm_stitch.testing.workloads import grid_cases


def persistent() -> KernelPlan:
    return plan_in_block(graph(build(normalized, ((1, 4096, 4096), "float32"))), H200)


def loaded() -> KernelPlan:
    return plan_in_block(graph(build(normalized, ((1, 1500, 1024), "float32"))), H200)


def staged() -> KernelPlan:
    return copied_rows(softmax, 65536)


def grid() -> KernelPlan:
    return grid_plan(stitch_graph(grid_cases.batch_norm_training(131072, 256).build()), H200)


def with_layout(plan: KernelPlan, **changed: Any) -> KernelPlan:
    layout = replace(plan.stage.layout, **changed)
    return replace(plan, phases=((replace(plan.stage, layout=layout),),))


def nearer(plan: KernelPlan) -> KernelPlan:
    """Rows of a patch that begin before the last one ends."""
    ((leaf, patch),) = plan.stage.layout.loaded_patches.items()
    return with_layout(plan, loaded_patches={leaf: replace(patch, pitch=8)})


def smaller(plan: KernelPlan) -> KernelPlan:
    ((leaf, patch),) = plan.stage.layout.loaded_patches.items()
    buffer = replace(patch.buffer, elements=patch.buffer.elements - 1)
    return with_layout(plan, loaded_patches={leaf: replace(patch, buffer=buffer)})


def fewer_copies(plan: KernelPlan) -> KernelPlan:
    ((leaf, patch),) = plan.stage.layout.copied_patches.items()
    return with_layout(plan, copied_patches={leaf: replace(patch, copies=patch.copies - 1)})


def overlapping(plan: KernelPlan) -> KernelPlan:
    """Pieces that leave their vector of columns."""
    ((leaf, patch),) = plan.stage.layout.copied_patches.items()
    pieces = replace(patch.pieces, positions=33)
    return with_layout(plan, copied_patches={leaf: replace(patch, pieces=pieces)})


def of_one_slot(plan: KernelPlan) -> KernelPlan:
    """Put all reductions into the first one's slots."""
    slots = plan.stage.layout.slots
    assert slots is not None
    return with_layout(plan, slots=replace(slots, position=dict.fromkeys(slots.position, 0)))


def for_one_block(plan: KernelPlan) -> KernelPlan:
    slots = plan.stage.layout.slots
    assert slots is not None
    return with_layout(plan, slots=replace(slots, blocks=1))


def without_slots(plan: KernelPlan) -> KernelPlan:
    return with_layout(plan, slots=None)


def without_copies(plan: KernelPlan) -> KernelPlan:
    return with_layout(plan, copies={})


def unplanned(plan: KernelPlan) -> KernelPlan:
    return with_layout(plan, loaded_patches={})


def too_little(plan: KernelPlan) -> KernelPlan:
    return replace(plan, shared=replace(plan.shared, dynamic=plan.shared.dynamic - 4))


def not_asked_for(plan: KernelPlan) -> KernelPlan:
    return replace(plan, shared=SharedMemory(1024, 48 * 1024 - 512))


def padded_nowhere(plan: KernelPlan) -> KernelPlan:
    return replace(plan, shared=replace(plan.shared, padding=4096))


def of_no_sums(plan: KernelPlan) -> KernelPlan:
    phases = tuple(tuple(replace(stage, layout=StageLayout()) for stage in stages) for stages in plan.phases)
    return replace(plan, phases=phases)


def kept_in_less(plan: KernelPlan) -> KernelPlan:
    kept = plan.retention
    assert kept is not None and kept.buffers
    return replace(plan, retention=replace(kept, buffers=()))


def of_other_loads(plan: KernelPlan) -> KernelPlan:
    kept = plan.retention
    assert kept is not None
    return replace(plan, retention=replace(kept, leaves=kept.leaves[::-1]))


@pytest.mark.parametrize(
    ("make", "plant", "named"),
    [
        (loaded, nearer, "elements apart"),
        (loaded, smaller, "is to hold"),
        (loaded, unplanned, "have no patch"),
        (loaded, too_little, "of dynamic shared memory"),
        (loaded, padded_nowhere, "padding"),
        (persistent, fewer_copies, "are to fill"),
        (persistent, overlapping, "overlap"),
        (persistent, of_one_slot, "share the slots"),
        (persistent, for_one_block, "and 1 blocks"),
        (persistent, without_slots, "no slots"),
        (persistent, not_asked_for, "are not asked for"),
        (staged, without_copies, "has no buffer"),
        (grid, of_no_sums, "have no buffer"),
        (grid, kept_in_less, "retain"),
        (grid, of_other_loads, "does not load"),
    ],
)
def test_planted_faults_are_named(
    make: Callable[[], KernelPlan], plant: Callable[[KernelPlan], KernelPlan], named: str
) -> None:
    plan = make()
    assert list(layout_problems(plan)) == []
    assert [line for line in layout_problems(plant(plan)) if named in line]
