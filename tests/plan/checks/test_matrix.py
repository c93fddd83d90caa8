# SPDX-License-Identifier: Apache-2.0
"""The checks of products on matrix units name each fault that is planted in a good plan."""

from __future__ import annotations

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
    ],
)
def test_planted_faults_are_named(good: KernelPlan, fields: dict[str, Any], problem: str) -> None:
    assert any(problem in line for line in matrix_problems(changed(good, **fields)))
