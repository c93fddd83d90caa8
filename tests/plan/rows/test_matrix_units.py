# SPDX-License-Identifier: Apache-2.0
"""Every column of a lane has a position of its own, next to the field that one mask takes with it."""

from __future__ import annotations

import pytest

from tvm_stitch.plan.rows.fields import PackedWeight, Place
from tvm_stitch.plan.rows.matrix_units import MatrixUnits


def units(bits: int, lane_bytes: int = 16, factors: int = 1, group: int = 32) -> MatrixUnits:
    """Return a plan without operators, for rows of 1,024 columns."""
    weight = PackedWeight(Place(None, 0, 0, 1), bits, group=group, scale=0)  # type: ignore[arg-type]
    sums = type("Sums", (), {"columns": 1024})()
    return MatrixUnits(sums, (None,) * factors, "float16", ((weight,) * 4,), (), lane_bytes, 1, 1, 8, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("bits", "apart"), [(2, 8), (4, 4), (8, 1), (16, 1)])
def test_positions_pair_the_fields_of_a_mask(bits: int, apart: int) -> None:
    found = units(bits)
    columns = {found.position(column): column for column in range(found.lane_columns)}
    assert set(columns) == set(range(found.lane_columns))
    assert all(columns[p + 1] - columns[p] == apart for p in range(0, found.lane_columns, 2))


@pytest.mark.parametrize(
    ("factors", "group", "groups", "tiles", "stored"),
    [
        (1, 32, 4, 1, 1),
        (2, 32, 4, 1, 2),
        (3, 32, 4, 2, 4),
        (8, 32, 4, 4, 8),
        (3, 64, 2, 1, 3),
        (9, 512, 1, 2, 16),
    ],
)
def test_groups_and_factors_share_the_columns_of_tiles(
    factors: int, group: int, groups: int, tiles: int, stored: int
) -> None:
    found = units(4, factors=factors, group=group)
    assert (found.groups, found.tiles, found.stored_factors) == (groups, tiles, stored)
    assert found.factor_elements == stored * 1024 + 8
    assert found.tile_rows == 4
