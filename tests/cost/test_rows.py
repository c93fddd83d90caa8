# SPDX-License-Identifier: Apache-2.0
"""Estimated times of rows grow with what they pay for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.choices import CHOICES
from tvm_stitch.cost.rows import RowWork, cached_share, copy_seconds, row_seconds
from tvm_stitch.device import GPUS

H200 = GPUS["h200"]
ROWS = RowWork(4 * H200.sms, 1, 1, 64 * 1024, 0, 32 * 1024, 2, 2)


def test_rows_in_registers_take_a_copys_time() -> None:
    assert row_seconds(ROWS, H200) == pytest.approx(copy_seconds(ROWS.rows * ROWS.first, H200))


@pytest.mark.parametrize(
    "change",
    [
        {"rows": ROWS.rows + 1},
        {"again": ROWS.first},
        {"spills": True},
        {"resident": 1},
        {"row_splits": 2, "exchanges": 1, "in_cluster": True},
        {"row_splits": 2, "exchanges": 1},
    ],
    ids=str,
)
def test_what_takes_longer(change: dict[str, int | bool]) -> None:
    assert row_seconds(replace(ROWS, **change), H200) > row_seconds(ROWS, H200)


def test_constants_are_the_devices() -> None:
    work = replace(ROWS, exchanges=3)
    dear = H200.with_choices(grid_exchange_seconds=1.0)
    assert row_seconds(work, dear) > 3.0 > row_seconds(work, H200)
    assert row_seconds(ROWS, H200.with_choices(copy_share=CHOICES.copy_share / 2)) == pytest.approx(
        2 * row_seconds(ROWS, H200)
    )


def test_a_full_cache_saves_nothing() -> None:
    assert cached_share(0.0, CHOICES) == CHOICES.cached_share < cached_share(0.9, CHOICES) < 1.0
    assert cached_share(1.0, CHOICES) == cached_share(5.0, CHOICES) == 1.0
