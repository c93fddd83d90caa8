# SPDX-License-Identifier: Apache-2.0
"""The checks of products on matrix units name each fault that is planted in a good plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.graph.helpers import graphs, grid_plan, legalize
from tests.plan.rows.packed import FORMS, product
from tests.relax.few_rows.test_product_sums import sums
from tvm_stitch.plan.checks.matrix import matrix_problems
from tvm_stitch.plan.kernel import KernelPlan, Stage


@pytest.fixture(scope="module")
def good() -> KernelPlan:
    (op_graph,) = graphs(sums(legalize(product(FORMS["4 bits of 32"], 2, 64, 1024, 32, "float16"))))
    return grid_plan(op_graph)


def changed(plan: KernelPlan, **fields: Any) -> KernelPlan:
    """Return the plan with other fields of its product on matrix units."""

    def of(stage: Stage) -> Stage:
        m = stage.row_mapping
        assert m.matrix is not None
        return replace(stage, mapping=replace(m, matrix=replace(m.matrix, **fields)))

    return with_stages(plan, of)


def with_stages(plan: KernelPlan, of: Callable[[Stage], Stage]) -> KernelPlan:
    """Return the plan with changed stages."""
    return replace(plan, phases=tuple(tuple(map(of, stages)) for stages in plan.phases))


def test_a_good_plan_has_no_problems(good: KernelPlan) -> None:
    assert list(matrix_problems(good)) == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"slices": 3}, "warps share 16 rows of weights"),
        ({"steps": 0}, "chunks of 128 columns are to cover 1024"),
        ({"lane_bytes": 12}, "chunks of 96 columns are to cover 1024"),
        ({"per_scale": 2}, "chunks share a scale of 32 columns"),
        ({"results": ()}, "0 sums are taken of 8"),
        ({"factors": (None,) * 9}, "factors and sums of"),
        ({"ring": 1}, "a ring of 1 steps"),
        ({"ring": 64}, "64 steps of"),
        ({"lane_bytes": 8}, "a ring of 2 steps, of lanes that take 8 B of a row"),
    ],
)
def test_planted_faults_are_named(good: KernelPlan, fields: dict[str, Any], problem: str) -> None:
    assert any(problem in line for line in matrix_problems(changed(good, **fields)))


def test_a_ring_is_missing_or_too_far_in_front(good: KernelPlan) -> None:
    assert good.ring is not None
    for ring, problem in (
        (None, "the plan has no ring for 2 steps"),
        (replace(good.ring, start=64), "are in front of"),
        (replace(good.ring, dtype="bfloat16"), "are in front of"),
        (replace(good.ring, bytes=64), "2 steps of"),
        (replace(good.ring, bytes=1 << 20), "B of dynamic shared memory"),
    ):
        assert any(problem in line for line in matrix_problems(replace(good, ring=ring)))


@pytest.mark.parametrize(
    "fields",
    [{"backwards": True}, {"spread": True}, {"tiles": 2}, {"unroll": 2}],
    ids=lambda f: next(iter(f)),
)
def test_tasks_of_a_ring_in_another_order_are_named(good: KernelPlan, fields: dict[str, Any]) -> None:
    plan = with_stages(good, lambda stage: replace(stage, **fields))
    assert any("do not follow each other" in line for line in matrix_problems(plan))


def test_products_of_a_phase_that_share_a_ring_are_named(good: KernelPlan) -> None:
    plan = replace(good, phases=tuple(stages * 2 for stages in good.phases))
    assert any("several products of a phase share a ring" in line for line in matrix_problems(plan))
