# SPDX-License-Identifier: Apache-2.0
"""Rows of weights are shared out over warps so that few idle, and what a lane loads fits groups and registers."""

from __future__ import annotations

import pytest

from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import H200, graphs, grid_plan, legalize
from tests.plan.gpu.test_workspace import chain
from tests.plan.rows.packed import FORMS, product
from tests.plan.rows.test_fields import sums_of_text
from tests.relax.few_rows.test_product_sums import sums
from tvm_stitch import explain
from tvm_stitch.plan.rows.matrix import _shares


@pytest.mark.parametrize(
    ("tiles", "row_chunks", "slices"),
    [
        (2112, 16, 1),  # a tile for each of 132 * 16 warps
        (1056, 16, 2),
        (132, 64, 16),
        (128, 64, 16),  # few idle blocks cost less than half of the warps of all
        (384, 16, 4),  # three quarters of the blocks compute fast enough for the memory
    ],
)
def test_warps_share_rows_so_that_few_idle(tiles: int, row_chunks: int, slices: int) -> None:
    found, chunks, steps = _shares(tiles, row_chunks, 16, 16, 132, H200)
    assert found == slices
    assert chunks * steps * slices >= row_chunks


@pytest.mark.parametrize("row_chunks", [1, 3, 7, 16, 43, 86, 112])
def test_a_warp_has_so_many_words_in_flight(row_chunks: int) -> None:
    for lane_bytes in (4, 8, 16):
        slices, chunks, steps = _shares(1000, row_chunks, lane_bytes, 16, 132, H200)
        assert chunks * 2 * lane_bytes * 16 * 32 <= H200.choices.matrix_bytes
        assert slices * (chunks * steps - steps) < row_chunks <= slices * chunks * steps


def test_factors_that_exceed_shared_memory_are_left_to_lanes() -> None:
    text = explain(product(FORMS["4 bits of 32"], 16, 16, 8192, 32, "float16"), emulated_target()).verbose()
    assert sums_of_text(text) == "sums by lanes: 16 rows of 8192 factors exceed shared memory"


def test_warps_share_the_warps_of_a_block() -> None:
    """A block of 12 warps has whole tiles, though more slices would leave fewer blocks idle."""
    assert all(12 % _shares(tiles, 16, 16, 12, 132, H200)[0] == 0 for tiles in range(1, 2000, 7))


def test_blocks_have_the_threads_that_were_faster() -> None:
    """Weights of 16 bits wait for memory, those of 4 bits for conversions."""
    (op_graph,) = graphs(sums(legalize(product(FORMS["4 bits of 32"], 4, 4096, 2048, 32, "float16"))))
    assert grid_plan(op_graph).shared_grid.threads == 512
    assert chain(4, added=False).shared_grid.threads == 256
