# SPDX-License-Identifier: Apache-2.0
"""Rows of weights are shared out one by one if whole tasks would leave blocks idle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.plan.gpu.test_workspace import chain
from tvm_stitch.plan.gpu.task_order import spread
from tvm_stitch.plan.kernel import KernelPlan, Stage


def products(plan: KernelPlan) -> list[Stage]:
    """Return the stages that take sums of products in lanes."""
    return [stage for stages in plan.phases for stage in stages if stage.row_mapping.weights]


def test_rows_of_weights_go_to_all_blocks() -> None:
    plan = chain(1, added=True)
    stages = products(plan)
    assert stages
    for stage in stages:
        blocks, slots = plan.shared_grid.blocks, stage.row_mapping.rows_per_block
        if stage.spread:
            assert stage.stride == blocks and stage.tasks % blocks == 0
            assert (stage.tasks - blocks) * slots < int(stage.alignment.domain.rows)
        else:
            assert stage.tasks % blocks == 0 or slots == 1
    assert any(stage.spread for stage in stages)


@pytest.mark.parametrize("blocks", [3, 5, 7, 132])
def test_no_round_is_empty(blocks: int) -> None:
    (stage, *_) = products(chain(1, added=True))
    tasks = -(-int(stage.alignment.domain.rows) // stage.row_mapping.rows_per_block)
    found = spread(replace(stage, tasks=tasks, stride=min(tasks, blocks), spread=False), blocks)
    assert found.spread == (tasks % blocks != 0)
    if found.spread:
        assert found.tasks // found.stride == -(-tasks // blocks)


def test_rows_of_matrix_units_are_shared_out_by_the_task() -> None:
    stages = [stage for stages in chain(4, added=False).phases for stage in stages]
    assert any(stage.row_mapping.matrix for stage in stages)
    assert not any(stage.spread for stage in stages)


def test_what_every_block_computes_is_not_shared_out() -> None:
    (stage, *_) = products(chain(1, added=True))
    own = replace(stage, slice=replace(stage.slice, replicated=True), tasks=5, spread=False)
    assert spread(own, 4) is own
