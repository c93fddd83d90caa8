# SPDX-License-Identifier: Apache-2.0
"""Clusters that stay: as many as certainly run at once, and only where that hides something."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tvm import relax
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import H200, build, graph
from tests.plan.strategies.test_transposed_loads import normalized
from tvm_stitch.plan.gpu.mapping import CrossBlockReduction
from tvm_stitch.plan.gpu.occupancy import OPT_IN_BYTES
from tvm_stitch.plan.in_block import plan_in_block
from tvm_stitch.plan.kernel import KernelPlan
from tvm_stitch.plan.shared_memory import shared_bytes, shared_parts, with_mapping
from tvm_stitch.plan.verify import problems


def planned(shape: tuple[int, int, int], dtype: str = "float32", body: Any = normalized) -> KernelPlan:
    return plan_in_block(graph(build(body, (shape, dtype))), H200)


@pytest.mark.parametrize(
    ("shape", "rows", "splits", "workers", "turns"),
    [
        ((1, 4096, 4096), 32, 8, 29, 5),
        ((1, 2048, 8192), 32, 4, 58, 5),
        ((1, 8192, 2048), 16, 8, 29, 5),  # half a line, for which there is room
        ((16, 1024, 1024), 32, 2, 116, 5),
        ((1, 5000, 8192), 16, 8, 29, 18),  # of 32 rows threads would have 64 registers, and 40 columns
        ((1, 4096, 65536), 32, 8, 116, 18),  # 71 turns are more than there is room for, 24 for static memory
    ],
)
def test_workers(shape: tuple[int, int, int], rows: int, splits: int, workers: int, turns: int) -> None:
    kernel_plan = planned(shape)
    m = kernel_plan.stage.row_mapping
    assert (m.rows_per_block, m.row_splits, m.workers, m.tasks) == (rows, splits, workers, turns)
    assert m.exchange is CrossBlockReduction.CLUSTER and m.blocks_per_sm == 2
    assert 2 * (shared_bytes(kernel_plan) + H200.shared_reserved) <= H200.shared_per_sm
    assert shared_parts(kernel_plan)[0] + CHOICES.shared_slack_bytes <= OPT_IN_BYTES
    assert problems(kernel_plan) == []


@pytest.mark.parametrize(
    "shape",
    [
        (32, 768, 196),  # four turns, and the last one not full
        (32, 196, 768),  # few columns
        (1, 4094, 4094),  # rows that are no pieces of 16 bytes
    ],
)
def test_blocks_that_end(shape: tuple[int, int, int]) -> None:
    kernel_plan = planned(shape)
    assert kernel_plan.stage.row_mapping.workers == 0
    assert problems(kernel_plan) == []


def test_something_else_is_read() -> None:
    """Other tensors that the rows read would not be on their way in the background."""

    def with_residual(emit: Any, x: Any, y: Any) -> Any:
        return normalized(emit, emit(R.add(x, emit(R.permute_dims(y, [0, 2, 1])))))

    kernel_plan = plan_in_block(
        graph(build(with_residual, ((1, 4096, 4096), "float32"), ((1, 4096, 4096), "float32"))), H200
    )
    assert kernel_plan.stage.row_mapping.workers == 0


def test_half_types_are_converted_early() -> None:
    def widened(emit: Any, x: Any) -> Any:
        return emit(R.astype(emit(normalized(emit, emit(R.astype(x, "float32")))), "float16"))

    m = planned((1, 4096, 4096), "float16", widened).stage.row_mapping
    ((_, spread),) = m.columns.items()
    assert m.workers and spread.chunks * spread.vector + CHOICES.persistent_registers <= 65536 // (
        2 * m.block
    )


def test_workers_have_all_rows() -> None:
    kernel_plan = planned((1, 4096, 4096))
    m = kernel_plan.stage.row_mapping
    for wrong in (replace(m, tasks=4), replace(m, workers=129), replace(m, workers=25)):
        assert [p for p in problems(with_mapping(kernel_plan, wrong)) if "workers" in p]


def test_static_memory_is_no_more_than_every_kernel_has() -> None:
    kernel_plan = planned((1, 4096, 65536))
    wrong = replace(kernel_plan.stage.row_mapping, workers=87, tasks=24)
    assert [p for p in problems(with_mapping(kernel_plan, wrong)) if "static" in p]


def test_weights_stay_on_chip() -> None:
    def affine(emit: Any, x: Any) -> Any:
        gamma = relax.const([1.0 + i for i in range(4096)], "float32")
        return emit(R.multiply(emit(normalized(emit, x)), gamma))

    plain, weighted = planned((1, 4096, 4096)), planned((1, 4096, 4096), body=affine)
    assert weighted.stage.row_mapping.workers
    assert shared_bytes(weighted) - shared_bytes(plain) == 4096 // 8 * 4
