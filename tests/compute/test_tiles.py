# SPDX-License-Identifier: Apache-2.0
"""Tiles suit the machine and the product."""

from __future__ import annotations

import tvm

from tvm_stitch.compute.convolution import Convolution, Window
from tvm_stitch.compute.padding import Padded
from tvm_stitch.compute.tiles import LEAST_TASKS, tiles_for, tiles_for_convolution
from tvm_stitch.graph.ir import Tensor


def target(cpu: str) -> tvm.target.Target:
    return tvm.target.Target({"kind": "llvm", "mcpu": cpu})


def test_tiles_suit_the_registers() -> None:
    found = [tiles_for(target(cpu), 1, 128, 768, 768) for cpu in ("x86-64", "haswell", "skylake-avx512")]
    assert [(t.lanes, t.rows, t.columns) for t in found] == [(4, 6, 8), (8, 6, 16), (16, 8, 32)]


def test_few_rows_are_one_tile() -> None:
    assert tiles_for(target("haswell"), 1, 3, 768, 768).rows == 3
    assert tiles_for(target("haswell"), 1, 0, 768, 768).rows == 1


def test_tasks_keep_cores_busy() -> None:
    tiles = tiles_for(target("haswell"), 1, 128, 768, 768)
    tasks = -(-128 // tiles.task_rows) * -(-768 // (tiles.columns * tiles.task_panels))
    assert tasks >= LEAST_TASKS and tiles.parallel
    assert not tiles_for(target("haswell"), 1, 4, 8, 8).parallel


def test_long_lines_are_divided() -> None:
    x, w = Tensor("x", (1, 1, 3000, 8), "float32"), Tensor("w", (), "float32")
    y = Tensor("y", (1, 1, 2998, 16), "float32")
    data = Padded(x, (0, 1, 2, 3), x.shape, x.shape, (0, 0, 0, 0), None)
    windows = (Window(1, 1, 1, 1), Window(2998, 3, 1, 1))
    conv = Convolution(data, w, (0, 1, 2, 3), y, 1, windows, 1, 8, 16)
    tiles = tiles_for_convolution(target("haswell"), conv)
    assert tiles.task_places < 300 and tiles.task_places % tiles.rows == 0
