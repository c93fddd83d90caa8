# SPDX-License-Identifier: Apache-2.0
"""The lanes, segments and tasks that a CPU plan chooses."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tvm import te, tirx, topi

from tvm_stitch.device import DeviceModel
from tvm_stitch.graph import read
from tvm_stitch.plan.cpu.tile import CpuMapping, Lanes, Split
from tvm_stitch.plan.in_block import plan_in_block
from tvm_stitch.relax.legalize.grid_samples import samples

CPU = DeviceModel("cpu", "cpu", 4, 8, 1, 1, 0, 32 * 1024, 32 * 1024, 1 << 20, 80e9)


def mapping(inputs: list[Any], output: Any) -> CpuMapping:
    """Return the mapping of a function made of tensor expressions."""
    return cast(CpuMapping, plan_in_block(read(te.create_prim_func([*inputs, output])), CPU).stage.mapping)


def tensor(*shape: int) -> Any:
    return te.placeholder([tirx.IntImm("int64", extent) for extent in shape], "float32", name="x")


@pytest.mark.parametrize(
    ("shape", "axis", "lanes"),
    [
        ((64, 1000), 1, Lanes.COLUMNS),  # rows contiguous
        ((1000, 64), 0, Lanes.ROWS),  # column sums: neighbouring rows are contiguous
        ((8, 32, 100), 1, Lanes.ROWS),
        ((1000, 10), 1, Lanes.ROWS),  # rows shorter than a vector
        ((3, 5), 1, Lanes.NONE),
    ],
)
def test_lanes_of_a_reduction(shape: tuple[int, ...], axis: int, lanes: Lanes) -> None:
    x = tensor(*shape)
    assert mapping([x], topi.sum(x, axis=axis)).lanes is lanes


def test_rows_run_inside_the_image() -> None:
    x = tensor(8, 32, 100)
    assert mapping([x], topi.sum(x, axis=1)).row_segment == 100


@pytest.mark.parametrize(
    ("batch", "channels", "segment"),
    [
        (1, 64, 28 * 28 * 64),  # whole vectors lie within a pixel's channels wherever they start
        (8, 64, 8 * 28 * 28 * 64),
        (8, 24, 24),  # a vector of 32 would read parts of two pixels
        (tirx.Var("n", "int64"), 65, 65),
        (tirx.Var("n", "int64"), 3, None),  # too short for vectors
    ],
)
def test_pooling_with_channels_last_has_lanes_over_channels(
    batch: Any, channels: int, segment: int | None
) -> None:
    i64 = [tirx.IntImm("int64", v) if isinstance(v, int) else v for v in (batch, 56, 56, channels)]
    x = te.placeholder(i64, "float32", name="x")
    pooled = topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max", layout="NHWC")
    chosen = mapping([x], pooled)
    assert (chosen.row_segment if chosen.lanes is Lanes.ROWS else None) == segment


def test_small_work_is_serial_and_large_work_parallel() -> None:
    small, large = tensor(4, 64), tensor(4096, 1024)
    assert mapping([small], topi.sum(small, axis=1)).parallel is False
    chosen = mapping([large], topi.sum(large, axis=1))
    assert chosen.parallel is True and chosen.divide is Split.ROWS
    assert 1 <= chosen.rows_per_task <= 64


def test_a_long_row_is_divided() -> None:
    x = tensor(1_000_000)
    chosen = mapping([x], topi.sum(x, axis=0))
    assert chosen.divide is Split.COLUMNS and chosen.parallel is True
    assert chosen.elements_per_task * 8 >= 1_000_000


def test_a_transpose_is_strided_along_its_rows() -> None:
    x = tensor(100, 200)
    (segment,) = mapping([x], topi.transpose(x)).inner.values()
    assert segment.extent == 100 and segment.strided


def test_a_segment_is_cut_where_a_concatenation_changes_its_source() -> None:
    x, y = tensor(9, 30), tensor(9, 47)
    (segment,) = mapping([x, y], topi.concatenate([x, y], axis=1)).inner.values()
    assert segment.cuts == (0, 30, 77)
    assert segment.parts == [(0, 30), (30, 47)]


@pytest.mark.parametrize(
    ("size", "alike", "width"), [(8, 8, 8), (24, 8, 8), (80, 16, 16), (64, 32, 32), (20, 0, 32), (4, 0, 32)]
)
def test_no_piece_of_a_symbolic_row_has_two_sources(size: int, alike: int, width: int) -> None:
    """A cache with a token behind it: as many elements of a head are of one of the two."""
    n = tirx.Var("n", "int64")
    heads, one, each = (tirx.IntImm("int64", extent) for extent in (4, 1, size))
    x = te.placeholder([heads, n, each], "float32", name="x")
    y = te.placeholder([heads, one, each], "float32", name="y")
    chosen = mapping([x, y], topi.concatenate([x, y], axis=1))
    (segment,) = chosen.inner.values()
    assert not isinstance(segment.extent, int)
    assert (segment.alike, chosen.width) == (alike, width)


def test_nothing_differs_along_a_row_without_conditions() -> None:
    n = tirx.Var("n", "int64")
    x = te.placeholder([tirx.IntImm("int64", 4), n, tirx.IntImm("int64", 8)], "float32", name="x")
    chosen = mapping([x], topi.tanh(x))
    assert [segment.alike for segment in chosen.inner.values()] == [0] and chosen.width == 32


def test_a_segment_is_cut_at_padding() -> None:
    x = tensor(9, 30)
    (segment,) = mapping([x], topi.nn.pad(x, (1, 2), (3, 4))).inner.values()
    assert segment.extent == 36
    assert segment.cuts == (0, 2, 32, 36)


def test_lanes_with_many_gathers_make_short_vectors() -> None:
    """Each element at a computed position is code of its own."""
    x, grid = tensor(1, 16, 64, 64), tensor(1, 2, 64, 64)
    assert mapping([x, grid], samples(x, grid, "bilinear", "zeros", False)).width == 16
    assert mapping([x, grid], samples(x, grid, "nearest", "zeros", False)).width == 32


@pytest.mark.parametrize(("channels", "shares"), [(16, True), (1, False)])
def test_segments_share_values_that_do_not_depend_on_the_channel(channels: int, shares: bool) -> None:
    x, grid = tensor(1, channels, 64, 64), tensor(1, 2, 64, 64)
    (segment,) = mapping([x, grid], samples(x, grid, "bilinear", "zeros", False)).inner.values()
    assert segment.shares == shares and segment.together == (16 if shares else 1)


def test_a_cheap_value_is_computed_for_each_segment() -> None:
    x, scale = tensor(16, 8, 160), tensor(1, 8, 160)
    (segment,) = mapping([x, scale], topi.multiply(x, topi.negative(scale))).inner.values()
    assert not segment.shares and segment.together == 1
