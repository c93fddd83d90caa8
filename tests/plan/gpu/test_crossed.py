# SPDX-License-Identifier: Apache-2.0
"""How many rows a block turns in shared memory: lines of memory, shared out evenly."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import H200, build, graph
from tvm_stitch.plan.in_block import plan_in_block
from tvm_stitch.plan.memory import shared_bytes


def normalized(emit: Any, x: Any) -> Any:
    """The rows of a transposed tensor less their mean, over their root mean square."""
    x = emit(R.permute_dims(x, [0, 2, 1]))
    centred = emit(R.subtract(x, emit(R.mean(x, -1, True))))
    square = emit(R.mean(emit(R.multiply(centred, centred)), -1, True))
    return R.divide(centred, emit(R.sqrt(emit(R.add(square, relax.const(1e-5, "float32"))))))


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        ((32, 196, 768), 32),  # 768 blocks of 132 multiprocessors: as even as smaller ones
        ((32, 768, 196), 16),  # of 32 rows some multiprocessors would have two blocks, most one
        ((1, 4096, 4096), 8),  # no more have room
    ],
)
def test_rows_of_a_block(shape: tuple[int, int, int], rows: int) -> None:
    made = plan_in_block(graph(build(normalized, (shape, "float32"))), H200)
    m = made.stage.row_mapping
    assert m.crossed and m.rows_per_block == rows
    assert shared_bytes(made) <= H200.shared_per_block
