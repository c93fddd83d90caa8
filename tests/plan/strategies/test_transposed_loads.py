# SPDX-License-Identifier: Apache-2.0
"""A block transposes rows in shared memory. Their number gives whole lines of memory, shared out evenly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import H200, build, graph
from tvm_stitch.config import StitchConfig
from tvm_stitch.plan.gpu.mapping import CrossBlockReduction
from tvm_stitch.plan.in_block import plan_in_block
from tvm_stitch.plan.shared_memory import shared_bytes
from tvm_stitch.plan.verify import problems


def normalized(emit: Any, x: Any) -> Any:
    """Divide the rows of a transposed tensor, less their mean, by their root mean square."""
    x = emit(R.permute_dims(x, [0, 2, 1]))
    centred = emit(R.subtract(x, emit(R.mean(x, -1, True))))
    square = emit(R.mean(emit(R.multiply(centred, centred)), -1, True))
    return R.divide(centred, emit(R.sqrt(emit(R.add(square, relax.const(1e-5, "float32"))))))


@pytest.mark.parametrize(
    ("shape", "rows", "splits"),
    [
        ((32, 196, 768), 32, 1),  # 768 blocks of 132 multiprocessors: as even as smaller ones
        ((32, 768, 196), 16, 1),  # of 32 rows some multiprocessors would have two blocks, most one
        ((1, 2048, 8192), 32, 4),  # whole rows of 16, a line's half, would leave room for one block
        ((1, 4096, 4096), 32, 8),
        ((1, 8192, 2048), 16, 8),  # of 32 rows there is no room for three blocks
    ],
)
def test_rows_of_a_block(shape: tuple[int, int, int], rows: int, splits: int) -> None:
    kernel_plan = plan_in_block(graph(build(normalized, (shape, "float32"))), H200)
    m = kernel_plan.stage.row_mapping
    assert m.transposed and (m.rows_per_block, m.row_splits) == (rows, splits)
    assert (m.exchange is CrossBlockReduction.CLUSTER) == (splits > 1)
    held = m.blocks_per_sm * (shared_bytes(kernel_plan) + H200.shared_reserved)
    assert m.blocks_per_sm >= 2 and held <= H200.shared_per_sm
    assert problems(kernel_plan) == []


@pytest.mark.parametrize(
    "plan",
    [
        lambda made: plan_in_block(made, H200, StitchConfig(clusters=False)),
        lambda made: plan_in_block(made, replace(H200, max_cluster=1)),
    ],
    ids=["not wanted", "not there"],
)
def test_without_clusters_rows_are_whole(plan: Callable[[Any], Any]) -> None:
    m = plan(graph(build(normalized, ((1, 4096, 4096), "float32")))).stage.row_mapping
    assert m.transposed and (m.rows_per_block, m.row_splits) == (8, 1)


@pytest.mark.parametrize(
    ("shape", "axes", "rows", "chunks"),
    [
        ((32, 56, 56, 96), [0, 3, 1, 2], 32 * 96, 2),  # channels first: columns are the places of a channel
        ((32, 96, 56, 56), [0, 2, 3, 1], 32 * 56 * 56, 3),  # 96 columns at once
        ((8, 128, 12, 64), [0, 2, 3, 1], 8 * 12 * 64, 2),
    ],
)
def test_which_axes_are_rows(shape: tuple[int, ...], axes: list[int], rows: int, chunks: int) -> None:
    kernel_plan = plan_in_block(
        graph(build(lambda _emit, x: R.permute_dims(x, axes), (shape, "float32"))), H200
    )
    domain, m = kernel_plan.stage.alignment.domain, kernel_plan.stage.row_mapping
    assert m.transposed and domain.rows == rows
    assert [mapped.chunks for mapped in m.columns.values()] == [chunks]


def test_axes_that_keep_the_last_one_are_no_matter() -> None:
    shape = (8, 128, 12, 64)
    kernel_plan = plan_in_block(
        graph(build(lambda _emit, x: R.permute_dims(x, [0, 2, 1, 3]), (shape, "float32"))), H200
    )
    assert not kernel_plan.stage.row_mapping.transposed
