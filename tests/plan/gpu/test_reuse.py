# SPDX-License-Identifier: Apache-2.0
"""A grid-wide plan keeps as much on chip for later phases as fits, and only if threads find their own values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tvm.relax import op as R

from stitch_testing.stitch_graphs import stitch_graph
from tests.choices import CHOICES
from tests.graph.helpers import H200, build, grid_plan
from tests.plan.reread import column_softmax, gradient
from tvm_stitch.plan.gpu.reuse import loaded_tile, retain, shared_out_alike
from tvm_stitch.plan.kernel import InterPhaseReuse, KernelPlan
from tvm_stitch.plan.shared_memory import shared_bytes
from tvm_stitch.plan.verify import problems
from tvm_stitch.testing.workloads import grid_cases

F32 = "float32"
FOUR = replace(H200, name="slice", sms=4)


def planned(mod: Any, device: Any = H200) -> KernelPlan:
    plan = grid_plan(stitch_graph(mod), device)
    assert problems(plan) == []
    return plan


def retention(mod: Any, device: Any = H200) -> InterPhaseReuse:
    kept = planned(mod, device).retention
    assert kept is not None
    return kept


def test_batch_norm_keeps_a_part_of_its_data() -> None:
    """<131072,256>: all the shared memory, and as many registers as the kernel has to spare."""
    plan = planned(grid_cases.batch_norm_training(131072, 256).build())
    kept = plan.retention
    assert kept is not None and [t.name for t in kept.tensors] == ["x"]
    first, again = kept.stages
    assert first is plan.phases[0][-1] and (again,) == plan.phases[-1]
    assert kept.bytes == plan.shared_grid.threads * 16
    assert shared_bytes(plan) + kept.bytes * first.unroll > H200.shared_per_block - 1024
    assert kept.registers == CHOICES.retained_in_registers


def test_small_data_is_kept_whole() -> None:
    """All tasks that every block has, and no more."""
    kept = retention(grid_cases.batch_norm_training(8192, 256).build())
    assert kept.tasks == kept.stages[0].tasks // kept.stages[0].stride == 7


def test_a_part_without_reductions_takes_the_rows_of_the_one_that_reduced() -> None:
    kept = retention(grid_cases.batch_norm_training(4096, 64).build(), FOUR)
    first, again = kept.stages
    assert again.alignment.domain.rows == first.alignment.domain.rows == 4096
    assert again.mapping.columns == first.mapping.columns and shared_out_alike(first, again)


def test_three_phases_share_what_the_first_loads() -> None:
    kept = retention(build(column_softmax, ((4096, 64), F32)), FOUR)
    assert len(kept.stages) == 3


def test_two_inputs_are_kept_together() -> None:
    kept = retention(build(gradient, ((4096, 64), F32), ((4096, 64), F32)), FOUR)
    assert {t.name for t in kept.tensors} == {"x0", "x1"}
    one = retention(build(column_softmax, ((4096, 64), F32)), FOUR)
    assert kept.bytes == 2 * one.bytes


def test_flat_domains_are_kept_but_for_a_last_part_of_a_task() -> None:
    plan = planned(grid_cases.standardize_by_max(2001, 1000).build(), FOUR)
    kept = plan.retention
    assert kept is None or kept.stages[0].mapping.split  # small data may stay in the cache
    plan = planned(grid_cases.standardize_by_max(4096, 4096).build())
    kept = plan.retention
    assert kept is not None and len(kept.stages) == 3
    first = kept.stages[0]
    assert first.mapping.split and kept.tasks <= (first.tasks - 1) // first.stride


@pytest.mark.parametrize("columns", [63, 65])
def test_rows_that_leave_lanes_idle_are_read_again(columns: int) -> None:
    plan = planned(grid_cases.batch_norm_training(8192, columns).build(), replace(H200, sms=16))
    covered = {p.mapping.covered(columns) for p in plan.phases[0] if not p.slice.replicated}
    assert plan.retention is None or covered == {columns}


def test_kernels_of_their_own_keep_nothing() -> None:
    graph = stitch_graph(grid_cases.batch_norm_training(131072, 256).build())
    assert grid_plan(graph, H200, barriers=False).retention is None


def test_fewer_tasks_than_blocks_keep_nothing() -> None:
    assert planned(grid_cases.batch_norm_training(64, 256).build()).retention is None


def test_other_rows_or_threads_are_not_shared_out_alike() -> None:
    plan = planned(grid_cases.batch_norm_training(4096, 64).build(), FOUR)
    first = plan.phases[0][-1]
    x = next(t for t in plan.graph.inputs if t.name == "x")
    assert loaded_tile(first, x) is not None
    assert shared_out_alike(first, replace(first, unroll=1, backwards=True))
    for changed in ({"stride": 2}, {"offset": 1}, {"tasks": 3}, {"tiles": 2}):
        assert not shared_out_alike(first, replace(first, **changed))
    other = replace(first.mapping, threads=2 * first.mapping.threads)
    assert not shared_out_alike(first, replace(first, mapping=other))


def test_a_tile_of_several_steps_is_not_loaded_whole() -> None:
    plan = planned(grid_cases.batch_norm_training(4096, 64).build(), FOUR)
    first = plan.phases[0][-1]
    x = next(t for t in plan.graph.inputs if t.name == "x")
    m = first.mapping
    halved = {c: replace(cm, steps=2 * cm.steps, vector=cm.vector // 2) for c, cm in m.columns.items()}
    stepped = replace(m, columns=halved)
    assert all(stepped.covered(int(c)) == m.covered(int(c)) for c in halved)
    assert loaded_tile(first, x) is not None and loaded_tile(replace(first, mapping=stepped), x) is None


def test_without_registers_to_spare_shared_memory_alone_is_used() -> None:
    plan = planned(grid_cases.batch_norm_training(131072, 256).build())
    kept = retain(replace(plan, retention=None), words=0)
    assert kept is not None and kept.registers == 0 and kept.shared > 0


def test_two_parts_of_a_phase_may_find_the_same() -> None:

    def body(emit: Callable[..., Any], x: Any, y: Any) -> Any:
        total = emit(R.sum(emit(R.multiply(x, y)), 0, True))
        scaled = emit(R.multiply(x, total))
        most = emit(R.max(scaled, 0, True))
        return [scaled, emit(R.add(y, most)), most]

    plan = planned(build(body, ((509, 64), F32), ((509, 64), F32)), replace(H200, sms=2))
    assert plan.retention is not None and len(plan.retention.stages) == 3


def test_kernels_of_many_phases_keep_nothing_in_registers() -> None:

    def body(emit: Callable[..., Any], x: Any) -> Any:
        for reduce in (R.sum, R.max, R.min):
            x = emit(R.multiply(x, emit(R.exp(emit(reduce(x, 0, True))))))
        return x

    plan = planned(build(body, ((65536, 64), F32)))
    assert plan.retention is not None and len(plan.phases) > 5
    assert plan.retention.registers == 0 < plan.retention.shared
