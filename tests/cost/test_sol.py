# SPDX-License-Identifier: Apache-2.0
"""SOL times: bytes at a copy's pace, launches, barriers, few blocks, and what a last wave leaves idle."""

from __future__ import annotations

import pytest

from tests.choices import CHOICES
from tvm_stitch.cost.sol import (
    Load,
    Work,
    moving_seconds,
    seconds,
    share_of,
    tail_seconds,
)
from tvm_stitch.device import GPUS

H200, V100 = GPUS["h200"], GPUS["v100"]
MEGABYTE = 1_000_000


def one(size: int) -> Work:
    return Work(((Load(size),),))


def test_large_kernels_take_as_long_as_a_copy() -> None:
    # A device copy of 536 MB took 127 to 130 us on an H200 (4.15 TB/s).
    assert seconds(one(536 * MEGABYTE), H200) == pytest.approx(130e-6, rel=0.05)
    assert moving_seconds(one(536 * MEGABYTE), V100) > 5 * moving_seconds(one(536 * MEGABYTE), H200)


def test_tiny_kernels_take_a_launch() -> None:
    assert seconds(one(1000), H200) == pytest.approx(CHOICES.launch_seconds, rel=0.01)


def test_resident_grids_move_data_more_slowly_and_kernels_side_by_side_a_little() -> None:
    loads = ((Load(100 * MEGABYTE),),)
    block, side, resident = (
        moving_seconds(w, H200) for w in (Work(loads), Work(loads, True), Work(loads, True, True))
    )
    assert block < side < 1.1 * block and side < resident < 1.2 * block


def test_a_barrier_costs_less_than_a_launch() -> None:
    phases = ((Load(1000),), (Load(1000),), (Load(1000),))
    together, kernels = Work(phases, True, True), Work(phases, True, False, barriers=False)
    assert seconds(together, H200) == pytest.approx(
        CHOICES.launch_seconds + 2 * CHOICES.barrier_seconds, rel=0.01
    )
    assert seconds(kernels, H200) == pytest.approx(3 * CHOICES.launch_seconds, rel=0.01)


def test_parts_of_a_phase_share_the_device_and_phases_wait() -> None:
    a, b = Load(10 * MEGABYTE), Load(30 * MEGABYTE)
    assert moving_seconds(Work(((a, b),)), H200) == pytest.approx(moving_seconds(one(40 * MEGABYTE), H200))
    few = Load(10 * MEGABYTE, share_of(2, H200))
    beside = moving_seconds(Work(((few, b),)), H200)
    assert beside == pytest.approx(moving_seconds(Work(((few,),)), H200))  # it takes longer than all of b
    assert moving_seconds(Work(((few,), (b,))), H200) > 1.05 * beside


def test_few_blocks_draw_part_of_the_bandwidth() -> None:
    assert share_of(1, H200) == CHOICES.lone_block_shares / 132
    assert share_of(20, H200) < share_of(30, H200) < 1 == share_of(132, H200)


@pytest.mark.parametrize(
    "rows, columns, idle",
    [
        (132 * 4, 4096, 0.0),  # a full wave of four blocks a multiprocessor
        (132 * 4 + 1, 4096, 527 / 528),
        (132 * 6, 4096, 0.5),
        (132, 50_000, 0.0),  # rows so long that a multiprocessor holds one
        (133, 50_000, 131 / 132),
    ],
)
def test_the_last_wave(rows: int, columns: int, idle: float) -> None:
    """``idle`` is the part of a wave that the last one leaves."""
    row = 4 * columns
    wave = 132 * (4 if row <= 16 * 1024 else 1) * row
    expected = moving_seconds(one(round(idle * wave)), H200)
    assert tail_seconds(one(rows * row), rows, H200) == pytest.approx(expected, abs=1e-12)
