# SPDX-License-Identifier: Apache-2.0
"""Weights of matrix units get a ring if shared memory has room, and if a block's tasks follow by the stride."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.graph.helpers import H200, graphs, grid_plan, legalize
from tests.plan.gpu.test_workspace import chain
from tests.plan.rows.packed import FORMS, product
from tests.relax.few_rows.test_product_sums import sums
from tvm_stitch.plan.kernel import KernelPlan, Stage
from tvm_stitch.plan.rows.matrix_units import MatrixUnits
from tvm_stitch.plan.rows.weight_ring import with_weight_ring
from tvm_stitch.plan.shared_memory import shared_parts


def planned(name: str, columns: int, inner: int, group: int = 32, rows: int = 1) -> KernelPlan:
    """Return the plan of one product."""
    (op_graph,) = graphs(sums(legalize(product(FORMS[name], rows, columns, inner, group, "float16"))))
    return grid_plan(op_graph)


def units_of(plan: KernelPlan) -> list[MatrixUnits]:
    found = [stage.row_mapping.matrix for stage in plan.stages]
    return [units for units in found if units is not None]


def with_stages(plan: KernelPlan, **fields: Any) -> KernelPlan:
    """Return the plan with other fields of its stages on matrix units."""

    def of(stage: Stage) -> Stage:
        return stage if stage.row_mapping.matrix is None else replace(stage, **fields)

    return replace(plan, phases=tuple(tuple(map(of, stages)) for stages in plan.phases))


@pytest.fixture(scope="module")
def two_products() -> KernelPlan:
    """The plan of two products with a grid barrier between them, without a ring, for a device that gives them one."""
    choices = replace(H200.choices, ring_bits=16, ring_steps=3)
    return replace(chain(4, added=False), device=replace(H200, choices=choices))


def test_weights_of_16_bits_have_none(two_products: KernelPlan) -> None:
    assert with_weight_ring(replace(two_products, device=H200)).ring is None


def test_steps_are_those_of_the_choice_or_all_of_a_row() -> None:
    plan = planned("4 bits of 32", 16_896, 4096)
    (units,) = units_of(plan)
    assert units.ring == H200.choices.ring_steps < units.steps
    assert plan.ring is not None and plan.ring.bytes == units.ring_bytes(plan.shared_grid.threads)
    (units,) = units_of(planned("4 bits of 32", 64, 1024))
    assert (units.steps, units.ring) == (1, 2)


def test_steps_have_half_of_the_chunks(two_products: KernelPlan) -> None:
    pairs = list(zip(units_of(two_products), units_of(with_weight_ring(two_products))))
    for before, after in pairs:
        assert before.chunks * before.steps == after.chunks * after.steps
        assert after.chunks == (before.chunks // 2 if before.chunks % 2 == 0 else before.chunks)
    assert any(after.chunks < before.chunks for before, after in pairs)


def test_fetches_into_the_cache_are_replaced(two_products: KernelPlan) -> None:
    assert any(units.ahead for units in units_of(two_products))
    assert not any(units.ahead for units in units_of(with_weight_ring(two_products)))


def test_the_ring_is_behind_the_factors_of_all_stages(two_products: KernelPlan) -> None:
    plan = with_weight_ring(two_products)
    threads = plan.shared_grid.threads
    assert plan.ring is not None
    assert plan.ring.start >= max(units.shared_bytes(threads // 32) for units in units_of(plan))
    assert plan.ring.bytes == max(units.ring_bytes(threads) for units in units_of(plan))
    assert shared_parts(plan)[1] == plan.ring.start + plan.ring.bytes
    assert plan.ring.buffer.bytes == plan.ring.start + plan.ring.bytes


def test_lanes_of_few_bytes_have_none() -> None:
    assert planned("4 bits of 32", 64, 1024, 8).ring is None


def test_weights_with_zero_points_of_their_own_have_none() -> None:
    assert planned("4 bits of 32 with zeros", 64, 1024, 64).ring is None


def test_products_of_one_phase_have_none(two_products: KernelPlan) -> None:
    together = tuple(stage for stages in two_products.phases for stage in stages)
    assert with_weight_ring(two_products).ring is not None
    assert with_weight_ring(replace(two_products, phases=(together,))).ring is None


@pytest.mark.parametrize(
    "fields",
    [{"backwards": True}, {"spread": True}, {"tiles": 2}, {"unroll": 2}],
    ids=lambda f: next(iter(f)),
)
def test_tasks_in_another_order_have_none(two_products: KernelPlan, fields: dict[str, Any]) -> None:
    assert with_weight_ring(with_stages(two_products, **fields)).ring is None


def test_as_many_steps_as_shared_memory_holds(two_products: KernelPlan) -> None:
    plan = with_weight_ring(two_products)
    assert plan.ring is not None
    units = max(units_of(plan), key=lambda each: each.ring)
    step = units.step_bytes * plan.shared_grid.threads
    others = H200.choices.shared_slack_bytes + shared_parts(plan)[0]
    for fewer, ring in ((0, units.ring), (1, units.ring - 1)):
        most = plan.ring.start + units.ring * step + others - fewer
        device = replace(two_products.device, shared_per_block=most)
        found = units_of(with_weight_ring(replace(two_products, device=device)))
        assert max(each.ring for each in found if each.step_bytes == units.step_bytes) == (
            ring if ring > 1 else 0
        )
    least = replace(two_products.device, shared_per_block=plan.ring.start + step)
    assert with_weight_ring(replace(two_products, device=least)).ring is None
