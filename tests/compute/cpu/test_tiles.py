# SPDX-License-Identifier: Apache-2.0
"""Tiles suit the machine and the product."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_stitch
from tests.choices import CHOICES
from tvm_stitch.compute.convolution import Convolution, Window
from tvm_stitch.compute.cpu.convolution_tiles import tiles_for_convolution
from tvm_stitch.compute.cpu.micro_kernel.reduction_blocks import blocks_of
from tvm_stitch.compute.cpu.micro_kernel.sums import chains_of
from tvm_stitch.compute.cpu.padding import Padded
from tvm_stitch.compute.cpu.tiles import tiles_for
from tvm_stitch.graph.ir import Tensor


def target(cpu: str) -> tvm.target.Target:
    return tvm.target.Target({"kind": "llvm", "mcpu": cpu})


def test_tiles_suit_the_registers() -> None:
    found = [
        tiles_for(target(cpu), CHOICES, 1, 128, 768, 768) for cpu in ("x86-64", "haswell", "skylake-avx512")
    ]
    assert [(t.lanes, t.rows, t.columns) for t in found] == [(4, 6, 8), (8, 6, 16), (16, 8, 32)]


def test_few_rows_are_one_tile() -> None:
    assert tiles_for(target("haswell"), CHOICES, 1, 3, 768, 768).rows == 3
    assert tiles_for(target("haswell"), CHOICES, 1, 0, 768, 768).rows == 1


def test_tasks_keep_cores_busy() -> None:
    tiles = tiles_for(target("haswell"), CHOICES, 1, 128, 768, 768)
    tasks = -(-128 // tiles.task_rows) * -(-768 // (tiles.columns * tiles.task_panels))
    assert tasks >= CHOICES.least_tasks and tiles.parallel
    assert not tiles_for(target("haswell"), CHOICES, 1, 4, 8, 8).parallel


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "outside"),
    [
        (6272, 512, 128, True),  # of a convolution of 28 x 28 places: the weights stay in the cache
        (128, 3072, 768, False),  # of a layer of BERT: the rows do
        (392, 512, 2048, True),  # neither does, and there are fewer tasks of rows than of columns
        (784, 512, 128, True),  # both do
        (tvm.tirx.Var("n", "int64"), 512, 128, True),
        (tvm.tirx.Var("n", "int64"), 3072, 768, False),
        (128, tvm.tirx.Var("n", "int64"), 64, False),
        (128, 64, tvm.tirx.Var("n", "int64"), False),
    ],
)
def test_what_tasks_in_a_row_have_in_common(rows: Any, columns: Any, depth: Any, outside: bool) -> None:
    assert tiles_for(target("skylake-avx512"), CHOICES, 1, rows, columns, depth).rows_outside is outside


@pytest.mark.parametrize(
    ("batch", "lines", "channels", "outside"), [(8, 56, 64, True), (8, 7, 512, False), (1, 7, 512, True)]
)
def test_images_pass_by_many_weights(batch: int, lines: int, channels: int, outside: bool) -> None:
    conv = convolution(lines, lines, channels, channels, (3, 3))
    read = (batch, *conv.data.shape[1:])
    conv = replace(conv, batch=batch, data=replace(conv.data, shape=read, inner=read))
    assert tiles_for_convolution(target("skylake-avx512"), CHOICES, conv).rows_outside is outside


@pytest.mark.parametrize("cores", [2, 4, 8, 12, 16])
@pytest.mark.parametrize(
    ("lines", "inputs", "outputs"), [(56, 64, 64), (28, 128, 128), (14, 256, 256), (7, 512, 512)]
)
def test_cores_have_equal_shares(lines: int, inputs: int, outputs: int, cores: int) -> None:
    """Of the time that the most loaded core takes, the others are idle for a third at most."""
    conv = convolution(lines, lines, inputs, outputs, (3, 3))
    tiles = tiles_for_convolution(target("skylake-avx512"), CHOICES, conv)
    tasks = -(-lines // tiles.task_rows) * -(-(outputs // tiles.columns) // tiles.task_panels)
    assert -(-tasks // cores) * cores * tiles.task_rows <= 1.5 * tasks * tiles.task_rows


@pytest.mark.parametrize("cores", [2, 12, 16])
def test_known_cores_have_a_task_each(cores: int) -> None:
    where = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": cores})
    tiles = tiles_for_convolution(where, CHOICES, convolution(14, 14, 256, 256, (3, 3)))
    tasks = -(-14 // tiles.task_rows) * -(-(256 // tiles.columns) // tiles.task_panels)
    assert tasks % cores == 0 or tasks >= 4 * cores


@pytest.mark.parametrize("rows", [128, 197, 1500])
def test_rows_of_tasks_are_alike(rows: int) -> None:
    """No task has only the few rows that are left."""
    tiles = tiles_for(target("skylake-avx512"), CHOICES, 1, rows, 768, 768)
    tasks = -(-rows // tiles.task_rows)
    assert tasks * tiles.task_rows <= 1.15 * rows


def convolution(lines: int, places: int, inputs: int, outputs: int, kernel: tuple[int, int]) -> Convolution:
    """Build a convolution of one image, unpadded."""
    shape = (1, lines + kernel[0] - 1, places + kernel[1] - 1, inputs)
    x, w = Tensor("x", shape, "float32"), Tensor("w", (), "float32")
    y = Tensor("y", (1, lines, places, outputs), "float32")
    data = Padded(x, (0, 1, 2, 3), x.shape, x.shape, (0, 0, 0, 0), None)
    windows = (Window(lines, kernel[0], 1, 1), Window(places, kernel[1], 1, 1))
    return Convolution(data, w, (0, 1, 2, 3), y, 1, windows, 1, inputs, outputs)


def test_long_lines_are_divided() -> None:
    tiles = tiles_for_convolution(target("haswell"), CHOICES, convolution(1, 2998, 8, 16, (1, 3)))
    assert tiles.task_positions < 300 and tiles.task_positions % tiles.rows == 0 and not tiles.across_lines


@pytest.mark.parametrize("cpu", ["x86-64", "haswell", "skylake-avx512"])
@pytest.mark.parametrize("side", range(4, 60))
def test_a_core_has_enough_sums_in_flight(side: int, cpu: str) -> None:
    """Tiles of too few sums wait for each addition. Tiles that overlap compute sums twice."""
    tiles = tiles_for_convolution(target(cpu), CHOICES, convolution(side, side, 64, 128, (3, 3)))
    whole_line = tiles.rows == side and not tiles.across_lines
    assert tiles.rows * (tiles.columns // tiles.lanes) >= (8 if whole_line else CHOICES.sum_vectors_in_flight)
    of_task = tiles.task_rows * side
    computed = -(-of_task // tiles.rows) if tiles.across_lines else tiles.task_rows * -(-side // tiles.rows)
    assert computed * tiles.rows <= 1.25 * of_task


def test_small_images_are_divided_by_channels() -> None:
    """Each task reads all weights of its channels: few lines are too few for that."""
    tiles = tiles_for_convolution(target("haswell"), CHOICES, convolution(7, 7, 512, 512, (3, 3)))
    assert tiles.task_rows == 7 and tiles.task_panels * CHOICES.least_tasks <= 512 // tiles.columns


@pytest.mark.parametrize(
    ("depth", "level", "step"),
    [
        ([3, 192], 0, 1),  # whole loops where they fit
        ([3, 300], 1, 150),  # of one size
        ([31, 16], 0, 16),
        ([3, 3, 5, 100], 2, 2),
        ([1000], 0, 250),
    ],
)
def test_blocks_of_a_long_depth(depth: list[int], level: int, step: int) -> None:
    found = blocks_of(depth, CHOICES)
    assert found is not None and (found.level, found.step) == (level, step)
    assert step * math.prod(depth[level + 1 :]) <= CHOICES.sum_length
    assert blocks_of([2, CHOICES.longest_sum // 2], CHOICES) is None


@pytest.mark.parametrize(
    ("rows", "vectors", "chains"),
    [(1, 2, 4), (2, 2, 2), (3, 2, 1), (1, 1, 8), (4, 1, 2), (8, 2, 1), (10, 1, 1)],
)
def test_small_tiles_have_several_sums(rows: int, vectors: int, chains: int) -> None:
    """As many vectors are in flight as keep a core busy, and no more."""
    assert chains_of(rows, vectors, CHOICES) == chains


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize(("depth", "columns"), [(1, 40), (3, 17), (7, 16), (255, 40), (257, 8), (1000, 33)])
def test_sums_in_turn_are_right(rows: int, depth: int, columns: int) -> None:
    """The sums of an element divide some depths, and not others. Blocks of a long depth are tried, too."""
    rng = np.random.default_rng(depth)
    x, w = (rng.standard_normal(shape).astype("float32") for shape in ((rows, depth), (depth, columns)))
    weight = relax.const(w)
    builder = relax.BlockBuilder()
    data = relax.Var("x", relax.TensorType([rows, depth], "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            made = builder.emit_output(relax.op.matmul(data, weight))
        builder.emit_func_output(made)
    found = relax.VirtualMachine(tvm_stitch.compile(builder.get(), "llvm"), tvm.cpu())["main"](
        tvm.runtime.tensor(x)
    ).numpy()
    exact = x.astype("float64") @ w
    bound = np.abs(x).astype("float64") @ np.abs(w) * 2.0**-22
    assert (np.abs(found - exact) <= bound).all()
