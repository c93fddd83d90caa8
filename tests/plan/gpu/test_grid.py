# SPDX-License-Identifier: Apache-2.0
"""Grid-wide plans: resident blocks, tasks, scratch, and every check of verify, over cases and random graphs."""

from __future__ import annotations

import json

import pytest

from stitch_testing.random.graphs import random_graph
from stitch_testing.stitch_graphs import stitch_graph, stitch_graphs
from tests.graph.helpers import H200, grid_plan
from tvm_stitch.device import GPUS
from tvm_stitch.plan.choose import choose_plan
from tvm_stitch.plan.gpu.occupancy import blocks_per_sm
from tvm_stitch.plan.iteration.alignment import Misaligned
from tvm_stitch.plan.kernel import KernelPlan
from tvm_stitch.plan.verify import problems
from tvm_stitch.records.describe import describe
from tvm_stitch.testing.workloads import grid_cases
from tvm_stitch.testing.workloads.grid_case import GridCase

CASES = [case for scale in ("test", "gpu") for case in grid_cases.grid_cases(scale)]


def planned(case: GridCase) -> KernelPlan:
    return grid_plan(stitch_graph(case.build()), H200)


@pytest.mark.parametrize("device", ["h200", "a100", "v100", "t4"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_plans_of_the_cases_hold(case: GridCase, device: str) -> None:
    for op_graph in stitch_graphs(case.build()):
        try:
            plan = grid_plan(op_graph, GPUS[device])
        except Misaligned:
            assert not choose_plan(op_graph, GPUS[device]).grid_wide
            continue
        assert problems(plan) == []


@pytest.mark.parametrize("size", [3000, 400_000])
def test_plans_of_random_graphs_hold(size: int) -> None:
    """And they can be told: phases, bytes, scratch."""
    grids = 0
    for seed in range(30):
        for op_graph in stitch_graphs(random_graph(seed, size).mod):
            try:
                plan = choose_plan(op_graph, H200)
            except Misaligned:
                continue
            told = describe(op_graph.name, plan)
            assert json.loads(json.dumps(vars(told))) == vars(told)
            if plan.grid_wide:
                grids += 1
                assert problems(plan) == [], f"seed {seed}, {op_graph.name}"
                assert len(told.phases) == len(plan.phases) and told.bytes_written >= sum(
                    int(t.size) for t in op_graph.outputs
                )
    assert grids >= 10  # of about 24


def test_all_blocks_are_resident() -> None:
    plan = planned(grid_cases.layer_norm_backward(65536, 768))
    assert plan.cooperative and plan.shared_grid.blocks == plan.shared_grid.blocks_per_sm * H200.sms
    assert blocks_per_sm(H200, plan.shared_grid.threads, 32) >= plan.shared_grid.blocks_per_sm
    (rows,) = plan.phases[0]
    assert rows.tasks > rows.stride == plan.shared_grid.blocks  # a block takes its tasks in turn


def test_small_parts_run_side_by_side() -> None:
    plan = planned(grid_cases.clip_adam([(300, 40), (257,), (5, 3, 7), (64,), (1,)]))
    tasks = [part.tasks * part.tiles for part in plan.phases[1]]
    assert [part.offset for part in plan.phases[1]] == [sum(tasks[:i]) for i in range(5)]
    assert sum(tasks) < plan.shared_grid.blocks


def test_scratch_is_used_again_after_a_barrier() -> None:
    """Three totals in a row: the first one's partial results make room for the third one's."""
    plan = planned(grid_cases.standardize_by_max(64, 512))
    partials = list(plan.crossing.partials.values())
    assert {plan.scratch_of[t] for t in partials} == {s.name for s in plan.scratch}
    assert len(plan.scratch) < len(partials)


def test_without_barriers_there_are_kernels_instead() -> None:
    op_graph = stitch_graph(grid_cases.layer_norm_backward(37, 96).build())
    plan = grid_plan(op_graph, H200, barriers=False)
    assert len(plan.phases) == 2 and not plan.cooperative
    assert problems(plan) == []
    told = describe("k", plan)
    assert (told.launch["kernels"], told.launch["grid barriers"]) == (2, 0)


def test_partial_results_outlive_the_kernels_that_finish_them_again() -> None:
    op_graph = stitch_graph(grid_cases.standardize_by_max(64, 512).build())
    assert problems(grid_plan(op_graph, H200, barriers=False)) == []


def test_every_fold_is_in_one_part() -> None:
    """Totals of one part that move to another move together, or not at all."""
    for op_graph in stitch_graphs(random_graph(1005, 3000).mod):
        plan = choose_plan(op_graph, H200)
        if plan.grid_wide:
            assert problems(plan) == []
