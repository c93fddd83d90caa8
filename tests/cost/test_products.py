# SPDX-License-Identifier: Apache-2.0
"""Estimated times of tasks on CPUs, and of tiles of a CUDA convolution."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.choices import CHOICES
from tvm_stitch.cost.convolutions import TiledSums, tiled_sum_cycles
from tvm_stitch.cost.products import elapsed, step_cost
from tvm_stitch.device import GPUS

H200 = GPUS["h200"]
ONE_WAVE = TiledSums((64, 64, 2), 16, 2 * H200.sms, 100, 2, 1, False, 1 << 20)


def test_small_tiles_wait_for_their_sums() -> None:
    assert step_cost(6, 24, 2, CHOICES) < step_cost(2, 24, 2, CHOICES)
    assert step_cost(4, 6, 2, CHOICES) == 2 * step_cost(4, 4, 2, CHOICES)


def test_cores_take_whole_rounds_of_tasks() -> None:
    assert elapsed(28, 1.0, 1.0, [16]) == elapsed(32, 1.0, 1.0, [16]) == 32.0
    assert elapsed(28, 1.0, 1.0, [1]) == 28.0


@pytest.mark.parametrize(
    "change", [{"tiles": 2 * H200.sms + 1}, {"rounds": 101}, {"splits": 2, "clustered": True}], ids=str
)
def test_more_cycles(change: dict[str, int | bool]) -> None:
    assert tiled_sum_cycles(replace(ONE_WAVE, **change), H200) > tiled_sum_cycles(ONE_WAVE, H200)


def test_clusters_add_up_splits_sooner() -> None:
    divided = replace(ONE_WAVE, splits=2)
    assert tiled_sum_cycles(replace(divided, clustered=True), H200) < tiled_sum_cycles(divided, H200)
    slow = H200.with_choices(convolution_apart_cycles=10**9)
    assert tiled_sum_cycles(divided, slow) > 10**9
