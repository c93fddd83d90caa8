# SPDX-License-Identifier: Apache-2.0
"""How matrix products and convolutions are divided on a CPU: every constant of choice."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..graph.extent import Extent
from .convolution import Convolution

ROWS_OF_TASK = 64
"""Rows of a parallel task: so many reuse a panel of the right side while it is in the second-level cache."""

PANELS_OF_TASK = 4
"""Panels of columns of a parallel task."""

LEAST_TASKS = 32
"""Tasks that a product is divided into where it has work for them: twice the cores of a common machine."""

MOST_COPIED = 1 << 16
"""Elements of a panel that is copied: a quarter of a second-level cache of 1 MiB."""

LEAST_TILES_OF_COPY = 2
"""Tiles of rows that a panel is copied for."""

SHORT_DEPTH = 128
"""Depth up to which panels are copied: the additions that end a sum along the depth cost more of a short one."""

DOT_COLUMNS = 4
"""Columns of a tile whose sums run along the depth."""

SERIAL_PRODUCTS = 1 << 16
"""Multiplications up to which one thread is faster than a parallel region, which costs some microseconds."""

LONG_DEPTH = 1024
"""Products that are added one by one: the error of longer sums would be more than twice that of libraries."""

DEPTH_OF_SUM = 256
"""Products of each of the sums that a longer one is the sum of."""

PLACES_OF_TASK = 256
"""Places of windows of a parallel task of a convolution: so many reuse a panel of weights. Longer lines are divided."""

LINES_OF_TASK = 4
"""Lines of places that a task has at least, if there are enough tasks: neighbouring tasks copy some lines twice."""

LINES_OF_DEPTHWISE_TASK = 14
"""The same where channels do not mix: the copy is more of the work, and each panel of channels copies its own."""


@dataclass(frozen=True)
class Tiles:
    """The sizes of a kernel's tiles.

    Attributes:
        lanes: float32 elements of a vector.
        rows: of the micro-kernel, which keeps ``rows`` x ``columns`` sums in registers.
        columns: of the micro-kernel and of a panel: a multiple of ``lanes``.
        task_rows, task_panels: of a parallel task; rows of a convolution's task are lines along its last axis.
        parallel: whether tasks run in parallel at all.
        task_places: of a line, in a convolution's task.
        dot_rows: of a tile of ``DOT_COLUMNS`` whose sums run along the depth, each in a vector.
    """

    lanes: int
    rows: int
    columns: int
    task_rows: int
    task_panels: int
    parallel: bool
    task_places: int = 0
    dot_rows: int = 1

    def within(self, columns: int) -> int:
        """Columns of a panel where the last one overlaps the one before it: no more than there are."""
        width = self.columns
        while width > columns:
            width //= 2
        return width


def tiles_for(target: Any, batch: Extent, rows: Extent, columns: Extent, depth: Extent) -> Tiles:
    """Tiles for a product of these extents on a CPU.

    The micro-kernel holds as many sums as the registers do beside two vectors of the right side and one element of the
    left one: 8 x 2 vectors of 32 registers (AVX-512, NEON), 6 x 2 of 16.
    """
    lanes, registers = _vectors(target)
    tile_rows = _most_rows(registers)
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
    dot_rows = min(tile_rows, _most_rows(registers) // 2)
    return Tiles(lanes, tile_rows, tile_columns, task_rows, task_panels, parallel, dot_rows=dot_rows)


def tiles_for_convolution(target: Any, conv: Convolution) -> Tiles:
    """Tiles for a convolution on a CPU: places of windows take the part of a product's rows."""
    lanes, registers = _vectors(target)
    *outer, lines, places = (w.outputs for w in conv.windows)
    # The fewest places that are computed twice, where a line ends.
    rows = min(
        range(1, _most_rows(registers) + 1), key=lambda r: (-(-places // min(r, places)) * min(r, places), -r)
    )
    rows = max(1, min(rows, places))
    columns = 2 * lanes
    if conv.is_depthwise:
        panels = -(-conv.columns // columns)
    else:
        while columns > 4 and columns // 2 >= conv.outputs:
            columns //= 2
        panels = conv.groups * -(-conv.outputs // columns)
    task_places = max(1, places) if places < 2 * PLACES_OF_TASK else -(-PLACES_OF_TASK // rows) * rows
    parts = -(-places // task_places)
    least = LINES_OF_DEPTHWISE_TASK if conv.is_depthwise else LINES_OF_TASK
    task_rows = max(1, min(lines, max(least, -(-PLACES_OF_TASK // max(1, places)))))
    task_panels = panels
    images = math.prod([conv.batch if isinstance(conv.batch, int) else 1, *outer, parts])
    while _tasks(images, lines, panels, task_rows, task_panels) < LEAST_TASKS:
        if task_rows > least:
            task_rows = -(-task_rows // 2)
        elif task_panels > (1 if conv.is_depthwise else PANELS_OF_TASK):
            task_panels = -(-task_panels // 2)
        elif task_rows > 2:
            task_rows -= 1
        elif task_panels > 1:
            task_panels = -(-task_panels // 2)
        else:
            break
    work = images * lines * task_places * conv.columns * conv.depth
    parallel = not isinstance(conv.batch, int) or work > SERIAL_PRODUCTS
    return Tiles(lanes, rows, columns, task_rows, task_panels, parallel, task_places)


def _tasks(batch: int, rows: int, panels: int, task_rows: int, task_panels: int) -> int:
    return batch * -(-rows // task_rows) * -(-panels // task_panels)


def _most_rows(registers: int) -> int:
    """Rows of the micro-kernel, of two vectors each."""
    return 8 if registers >= 32 else 6


def _vectors(target: Any) -> tuple[int, int]:
    """Lanes of float32 and number of the vector registers of a target's instructions."""
    import tvm

    has = tvm.get_global_func("target.target_has_feature")
    if has("avx512f", target):
        return 16, 32
    if has("avx", target):
        return 8, 16
    return 4, 32 if has("neon", target) else 16
