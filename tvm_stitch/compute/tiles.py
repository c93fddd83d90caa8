# SPDX-License-Identifier: Apache-2.0
"""How a matrix product is divided on a CPU: every constant of choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..graph.extent import Extent

ROWS_OF_TASK = 64
"""Rows of a parallel task: so many reuse a panel of the right side while it is in the second-level cache."""

PANELS_OF_TASK = 4
"""Panels of columns of a parallel task."""

LEAST_TASKS = 32
"""Tasks that a product is divided into where it has work for them: twice the cores of a common machine."""

SERIAL_PRODUCTS = 1 << 16
"""Multiplications up to which one thread is faster than a parallel region, which costs some microseconds."""


@dataclass(frozen=True)
class Tiles:
    """The sizes of a kernel's tiles.

    Attributes:
        lanes: float32 elements of a vector.
        rows: of the micro-kernel, which keeps ``rows`` x ``columns`` sums in registers.
        columns: of the micro-kernel and of a panel: a multiple of ``lanes``.
        task_rows, task_panels: of a parallel task.
        parallel: whether tasks run in parallel at all.
    """

    lanes: int
    rows: int
    columns: int
    task_rows: int
    task_panels: int
    parallel: bool


def tiles_for(target: Any, batch: Extent, rows: Extent, columns: Extent, depth: Extent) -> Tiles:
    """Tiles for a product of these extents on a CPU.

    The micro-kernel holds as many sums as the registers do beside two vectors of the right side and one element of the
    left one: 8 x 2 vectors of 32 registers (AVX-512, NEON), 6 x 2 of 16.
    """
    lanes, registers = _vectors(target)
    tile_rows = 8 if registers >= 32 else 6
    if isinstance(rows, int):
        tile_rows = max(1, min(tile_rows, rows))
    tile_columns = 2 * lanes
    task_rows, task_panels = -(-ROWS_OF_TASK // tile_rows) * tile_rows, PANELS_OF_TASK
    parallel = True
    if isinstance(batch, int) and isinstance(rows, int) and isinstance(columns, int):
        panels = -(-columns // tile_columns)
        while _tasks(batch, rows, panels, task_rows, task_panels) < LEAST_TASKS and task_panels > 1:
            task_panels //= 2
        while _tasks(batch, rows, panels, task_rows, task_panels) < LEAST_TASKS and task_rows > 2 * tile_rows:
            task_rows = -(-task_rows // 2 // tile_rows) * tile_rows
        if isinstance(depth, int):
            parallel = batch * rows * columns * depth > SERIAL_PRODUCTS
    return Tiles(lanes, tile_rows, tile_columns, task_rows, task_panels, parallel)


def _tasks(batch: int, rows: int, panels: int, task_rows: int, task_panels: int) -> int:
    return batch * -(-rows // task_rows) * -(-panels // task_panels)


def _vectors(target: Any) -> tuple[int, int]:
    """Lanes of float32 and number of the vector registers of a target's instructions."""
    import tvm

    has = tvm.get_global_func("target.target_has_feature")
    if has("avx512f", target):
        return 16, 32
    if has("avx", target):
        return 8, 16
    return 4, 32 if has("neon", target) else 16
