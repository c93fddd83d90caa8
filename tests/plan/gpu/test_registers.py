# SPDX-License-Identifier: Apache-2.0
"""Registers of a part, and which columns of scales and biases stay in them."""

from __future__ import annotations

from dataclasses import replace

from stitch_testing.stitch_graphs import stitch_graph
from tests.graph.helpers import H200, grid_plan
from tvm_stitch.plan.gpu.registers import stage_words, with_resident
from tvm_stitch.plan.kernel import Stage
from tvm_stitch.testing.workloads import grid_cases


def normalizing(rows: int = 131072) -> Stage:
    """Return the part of batch norm that applies the statistics: four values a column, one load and one store an
    element.
    """
    graph = stitch_graph(grid_cases.batch_norm_training(rows, 256).build())
    (part,) = grid_plan(graph, H200).phases[-1]
    return part


def test_what_all_rows_share_stays_in_registers() -> None:
    part = normalizing()
    assert sorted(leaf[0].name for leaf in part.resident)[-2:] == ["beta", "gamma"] or len(part.resident) == 4
    vector = part.mapping.of(256).vector
    shared, loads, outputs = len(part.resident), part.unroll, 1
    assert stage_words(part) == vector * (shared + loads + outputs)


def test_as_many_as_fit() -> None:
    part = normalizing()
    for words in (0, 24, 32, 1000):
        tried = with_resident(replace(part, resident=()), words)
        assert stage_words(tried) <= words or not tried.resident
        assert set(tried.resident) <= set(part.resident)
    assert len(tried.resident) == len(part.resident) == 4


def test_blocks_of_one_task_load_them_as_they_go() -> None:
    part = normalizing()
    assert with_resident(replace(part, resident=(), tasks=part.stride), 1000).resident == ()
