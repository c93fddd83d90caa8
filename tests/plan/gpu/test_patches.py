# SPDX-License-Identifier: Apache-2.0
"""Each piece of a patch has a position of its own, and a warp's threads find their pieces in different banks."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.graph.helpers import H200, build, graph
from tests.plan.strategies.test_transposed_loads import normalized
from tvm_stitch.plan.gpu.patches import Pieces, pieces
from tvm_stitch.plan.in_block import plan_in_block


def place(layout: Pieces, vector: int, column: int, piece: int) -> int:
    return (column * layout.column + piece) ^ (column // vector % layout.positions)


@pytest.mark.parametrize("item", [2, 4])
@pytest.mark.parametrize("vector", [4, 8])
@pytest.mark.parametrize("rows", [8, 16, 32, 64])
def test_places_differ_and_stay_in_their_vector(rows: int, vector: int, item: int) -> None:
    per = 16 // item
    layout = Pieces(per, rows // per, min(8, rows // per * vector))
    columns = 16 * vector
    found = [place(layout, vector, c, p) for c in range(columns) for p in range(layout.column)]
    assert sorted(found) == list(range(columns * layout.column))
    size = vector * layout.column
    assert all(
        place(layout, vector, c, p) // size == c // vector
        for c in range(columns)
        for p in range(layout.column)
    )


@pytest.mark.parametrize(
    ("shape", "ways"), [((1, 4096, 4096), 1), ((1, 2048, 8192), 1), ((1, 8192, 2048), 2)]
)
def test_banks(shape: tuple[int, int, int], ways: int) -> None:
    """Threads of a warp read one element each: of eight lanes of four rows, or of sixteen lanes of two."""
    m = plan_in_block(graph(build(normalized, (shape, "float32"))), H200).stage.row_mapping
    (leaf,) = m.transposed
    layout, ((_, spread),) = pieces(m, leaf), m.columns.items()
    for v in range(spread.vector):
        words = {
            place(layout, spread.vector, (t % m.threads) * spread.vector + v, t // m.threads // layout.rows)
            * 4
            + t // m.threads % layout.rows
            for t in range(32)
        }
        assert len(words) == 32
        assert max(Counter(word % 32 for word in words).values()) == ways
