# SPDX-License-Identifier: Apache-2.0
"""Whole plans: for a GPU and a CPU, and again the same."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.relax import op as R

from stitch_testing.random.graphs import random_graph
from tests.graph.helpers import H200, build, graph, graphs
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import device_model
from tvm_stitch.plan.cpu.tile import CpuMapping
from tvm_stitch.plan.gpu.mapping import RowMapping
from tvm_stitch.plan.in_block import plan_in_block
from tvm_stitch.testing.workloads.cases import cases, softmax


def test_the_device_decides_the_mapping() -> None:
    op_graph = graph(softmax(64, 1024).build())
    assert isinstance(plan_in_block(op_graph, H200).stage.mapping, RowMapping)
    assert isinstance(plan_in_block(op_graph, device_model("llvm")).stage.mapping, CpuMapping)


@pytest.mark.parametrize("case", cases("test"), ids=lambda case: case.name)
def test_plans_are_deterministic(case: Any) -> None:
    for op_graph in graphs(case.build()):
        first, second = plan_in_block(op_graph, H200), plan_in_block(op_graph, H200)
        assert first.stage.mapping == second.stage.mapping
        passes = [[str((p.loads, p.values)) for p in made.stage.schedule.passes] for made in (first, second)]
        assert passes[0] == passes[1], (
            "but for the variables of rows and columns, which each plan has of its own"
        )


def test_planning_leaves_the_graph_as_it_is() -> None:
    op_graph = graph(softmax(64, 70000).build())
    before = str(op_graph)
    plan_in_block(op_graph, H200)
    assert str(op_graph) == before


def test_rows_read_again_keep_nothing() -> None:
    config = StitchConfig(clusters=False, grid_barriers=False)
    kernel_plan = plan_in_block(graph(softmax(64, 100_000).build()), H200, config)
    assert kernel_plan.stage.schedule.kept_values == set() and kernel_plan.stage.schedule.kept_loads == set()
    kernel_plan = plan_in_block(graph(softmax(64, 50_000).build()), H200, config)
    assert kernel_plan.stage.schedule.kept_values == set() and len(kernel_plan.stage.schedule.kept_loads) == 1


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_random_graphs_have_plans(first: int) -> None:
    for seed in range(first, first + 10):
        for op_graph in graphs(random_graph(seed, max_elements=600).mod):
            assert (
                plan_in_block(op_graph, H200).stage.schedule.passes
                or plan_in_block(op_graph, H200).stage.schedule.row_outputs
            )


def test_a_scope_of_scalars() -> None:
    op_graph = graph(build(lambda emit, x, y: R.exp(emit(R.add(x, y))), ((), "float32"), ((), "float32")))
    kernel_plan = plan_in_block(op_graph, H200)
    assert kernel_plan.stage.mapping.block <= 256
