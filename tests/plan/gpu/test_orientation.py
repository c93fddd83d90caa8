# SPDX-License-Identifier: Apache-2.0
"""The direction of reductions in memory, and the place where their sums are computed block by block."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.relax import op as R

from tests.graph.helpers import H200, build, graph
from tvm_stitch.plan.gpu.orientation import Orientation, orientation, wants_partition

F32 = "float32"


@pytest.mark.parametrize(
    ("shape", "axis", "lies"),
    [
        ((512, 64), 1, Orientation.ROW),
        ((512, 64), 0, Orientation.COLUMN),
        ((512, 64), None, Orientation.ALL),
        ((32, 64, 16), (0, 2), Orientation.ROW),
        ((32, 64, 16), (0, 1), Orientation.COLUMN),
        ((512, 1), 0, Orientation.ALL),
    ],
)
def test_orientations(shape: tuple[int, ...], axis: Any, lies: Orientation) -> None:
    op_graph = graph(build(lambda emit, x: R.sum(x, axis), (shape, F32)))
    assert orientation(op_graph.reduces[0]) == lies


def test_only_sums_of_columns_in_blocks_want_a_partition() -> None:
    def of(shape: tuple[int, int], axis: int) -> bool:
        return wants_partition(graph(build(lambda emit, x: R.sum(x, axis), (shape, F32))), H200)

    assert of((262144, 256), 0)
    assert not of((262144, 256), 1)
    assert not of((256, 262144), 0)  # a thread for every column keeps the device busy
    assert not of((8, 256), 0)  # few elements each
