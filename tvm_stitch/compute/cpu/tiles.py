# SPDX-License-Identifier: Apache-2.0
"""How matrix products and attention are divided on a CPU, and every constant of choice, those of convolutions too.

Two vectors may begin an addition in a cycle, and each waits four cycles for the last one. So a tile of fewer than 8
vectors of sums leaves the core idle, and one that ends behind the last row computes rows twice: tiles have the rows
for which both together cost least. :mod:`.convolution_tiles` divides convolutions by the same measure.

TVM gives each thread as many neighbouring tasks as the others, or one more, so 28 equal tasks take 16 cores as long
as 32. Of all divisions the one is taken whose most loaded core is done first, on the target's ``num-cores`` or, where
that is not known, on average over several numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from ...graph.extent import Extent
from ...target import has_feature
from ..attention import Attention
from .dot_instruction import DotInstruction

ROWS_OF_TASK = 64
"""Rows of a parallel task: so many reuse a panel of the right side while it is in the second-level cache."""

PANELS_OF_TASK = 4
"""Panels of columns of a parallel task."""

LEAST_TASKS = 32
"""Tasks that attention and depthwise convolutions are divided into where they have work for them."""

CORES = (1, 2, 4, 8, 12, 16, 24)
"""Numbers of cores that a product's tasks are to keep busy where the target has no ``num-cores``. Each core gets as
many neighbouring tasks as the others, or one more."""

MOST_COPIED = 1 << 16
"""Elements of a panel that is copied: a quarter of a second-level cache of 1 MiB."""

KEPT_IN_CACHE = 1 << 18
"""Elements that stay in a second-level cache of 2 MiB, or nearly so in one of 1 MiB, while others pass through."""

LEAST_TILES_OF_COPY = 2
"""Tiles of rows that a panel is copied for."""

SHORT_DEPTH = 128
"""Depth up to which panels are copied: the additions that end a sum along the depth cost more of a short one."""

DOT_COLUMNS = 4
"""Columns of a tile whose sums run along the depth."""

SERIAL_PRODUCTS = 1 << 16
"""Multiplications up to which one thread is faster than a parallel region, which costs some microseconds."""

VECTORS_IN_FLIGHT = 10
"""Vectors of sums that keep a core busy: each waits 4 cycles for its last addition, and 2 may begin in a cycle. With 8,
no more than that takes, every late load is lost time: 4 x 2 of AVX2 run at 0.86 of 6 x 2, and 5 x 2 at 0.97."""

PASS_OVERHEAD = 1
"""What a step of a tile's depth costs beside its multiplications (loads of the right side), in vectors of sums."""

ACROSS_LINES = 1.05
"""How much more a tile costs whose places may lie on two lines: each has an address of its own."""

LONG_DEPTH = 384
"""Products that are added one by one: the error of longer sums would be more than twice that of libraries."""

DEPTH_OF_SUM = 256
"""Products of each of the sums that a longer one is the sum of."""

CACHE_LINE = 64
"""Bytes that are fetched at once."""

FETCH_STEPS = 8
"""Steps of the depth between fetches of the weights that come next."""

LEAST_TILES_OF_FETCH = 2
"""Tiles that a block of weights is read by, for the block behind it to be fetched meanwhile: one alone reads a stream,
which the hardware fetches ahead."""

PLACES_OF_TASK = 256
"""Places of windows of a parallel task of a convolution: so many reuse a panel of weights, and at most twice as many
are in the second-level cache. Longer lines are divided."""

LINES_OF_TASK = 4
"""Lines that a task may have, however long they are."""

COST_OF_WEIGHTS = 4
"""What reading a vector of weights costs a task, in multiplications of vectors: they lie in the third-level cache."""

COST_OF_WEIGHTS_AGAIN = 1
"""The same where the task before has read them: they lie in the second-level cache."""

COST_OF_COPY = 4
"""What copying a vector of data costs a task, in the same unit."""

COST_OF_TRANSPOSITION = 12
"""The same where data lies in another order, as channels first."""

LINES_OF_DEPTHWISE_TASK = 14
"""Lines of places that a task has at least where channels do not mix, if there are enough tasks: neighbouring tasks
copy some lines twice, and each panel of channels copies its own."""

PANELS_OF_ATTENTION = 4
"""Panels of queries of a task of attention: so many read a block of keys while it is in the cache."""

KEYS_OF_BLOCK = 128
"""Keys of a block of attention: their rows and the scores of a panel of queries fit into a first-level cache."""


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
        across_lines: whether a convolution's tiles go on from line to line.
        rows_outside: whether tasks that follow each other have rows in common, rather than panels.
        dot_rows: of a tile of ``DOT_COLUMNS`` whose sums run along the depth, each in a vector.
        instruction: multiplies groups of a packed weight's elements; None where single ones are multiplied.
    """

    lanes: int
    rows: int
    columns: int
    task_rows: int
    task_panels: int
    parallel: bool
    task_places: int = 0
    across_lines: bool = False
    rows_outside: bool = False
    dot_rows: int = 1
    instruction: DotInstruction | None = None

    @property
    def group(self) -> int:
        """Neighbouring elements of the depth that lie together in a packed weight."""
        return 1 if self.instruction is None else self.instruction.group

    def packed_dtype(self, dtype: str) -> str:
        """Return the type of a packed weight whose elements are of a type."""
        return dtype if self.instruction is None else self.instruction.right

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
    lanes, registers = vectors_of(target)
    tile_rows = most_rows(registers)
    if isinstance(rows, int):
        tile_rows = tile_rows_for(tile_rows, rows, 2)
    tile_columns = 2 * lanes
    task_rows, task_panels = -(-ROWS_OF_TASK // tile_rows) * tile_rows, PANELS_OF_TASK
    parallel = True
    if isinstance(batch, int) and isinstance(rows, int) and isinstance(columns, int):
        panels = -(-columns // tile_columns)
        task_rows, task_panels = _task(batch, rows, panels, tile_rows, cores_of(target))
        if isinstance(depth, int):
            parallel = batch * rows * columns * depth > SERIAL_PRODUCTS
    outside = False
    if isinstance(columns, int) and isinstance(depth, int):
        left, row_tasks = (rows * depth, -(-rows // task_rows)) if isinstance(rows, int) else (None, 1)
        outside = has_rows_outside(
            left, columns * depth, row_tasks, -(-columns // (task_panels * tile_columns))
        )
    return Tiles(
        lanes,
        tile_rows,
        tile_columns,
        task_rows,
        task_panels,
        parallel,
        rows_outside=outside,
        dot_rows=min(tile_rows, most_rows(registers) // 2),
    )


def _task(batch: int, rows: int, panels: int, tile: int, cores: Sequence[int]) -> tuple[int, int]:
    """Rows and panels of a product's task: of the divisions the soonest done."""
    if not rows or not panels:
        return tile, 1

    def cost(task: tuple[int, int]) -> float:
        of_rows, of_panels = task
        tasks = tasks_of(batch, rows, panels, of_rows, of_panels)
        of_panel = 2 * COST_OF_WEIGHTS + step_cost(tile, min(of_rows, rows), 2)
        busy = rows / (of_rows * -(-rows // of_rows)) * panels / (of_panels * -(-panels // of_panels))
        return elapsed(tasks, of_panels * of_panel, min(1.0, busy), cores)

    most = min(-(-ROWS_OF_TASK // tile), -(-rows // tile))
    divisions = product(range(most, 0, -1), range(min(PANELS_OF_TASK, panels), 0, -1))
    return min(((tiles * tile, of_panels) for tiles, of_panels in divisions), key=cost)


def has_rows_outside(left: int | None, right: int, row_tasks: int, panel_tasks: int) -> bool:
    """Return whether tasks that follow each other should have rows in common: where less is read into the cache then.

    The side that changes from task to task is read once if it stays in the cache, else once for each task of the other
    side. Of equals rows are outside: they are written whole, one behind the other.

    Args:
        left, right: elements of both sides; ``left`` is None where its rows are as many as there may be.
        row_tasks, panel_tasks: the tasks that they are divided into.
    """
    if left is None:
        return right <= KEPT_IN_CACHE
    by_rows = left + right * (1 if right <= KEPT_IN_CACHE else row_tasks)
    by_panels = right + left * (1 if left <= KEPT_IN_CACHE else panel_tasks)
    return by_rows <= by_panels


def elapsed(tasks: int, cost: float, busy: float, cores: Sequence[int]) -> float:
    """Return the time of tasks of one ``cost``, times the cores that compute them: the mean over numbers of cores.

    Args:
        tasks: how many there are.
        cost: of a whole one.
        busy: the share of a whole task that they have on average.
        cores: numbers of cores.
    """
    # One core has no whole rounds to fill.
    rounds = [-(-tasks // number) * number if number > 1 else 0 for number in cores]
    return sum(max(elapsed, tasks * busy) for elapsed in rounds) * cost / len(cores)


def cores_of(target: Any, most: int | None = None) -> tuple[int, ...]:
    """Numbers of cores, among which the target's is; none for which there is too little work, if that is said."""
    known = target.attrs.get("num-cores")
    numbers = CORES if known is None else (int(known),)
    return numbers if most is None else tuple(sorted({min(number, max(1, most)) for number in numbers}))


def attention_tile(target: Any, attention: Attention) -> Tiles:
    """Tiles for attention on a CPU: the columns are queries, of which a task has ``task_panels`` times as many."""
    lanes, registers = vectors_of(target)
    rows, queries = most_rows(registers), attention.queries
    columns = lanes if isinstance(queries, int) and queries <= lanes else 2 * lanes
    panels = PANELS_OF_ATTENTION
    if isinstance(queries, int):
        heads = math.prod(extent if isinstance(extent, int) else 1 for extent in attention.leading)
        of_head = -(-queries // columns)
        panels = max(1, min(panels, of_head))
        while panels > 1 and heads * -(-of_head // panels) < LEAST_TASKS:
            panels //= 2
    return Tiles(lanes, rows, columns, rows, panels, True)


def tasks_of(batch: int, rows: int, panels: int, task_rows: int, task_panels: int) -> int:
    return batch * -(-rows // task_rows) * -(-panels // task_panels)


def most_rows(registers: int) -> int:
    """Rows of the micro-kernel, of two vectors each."""
    return 8 if registers >= 32 else 6


def tile_rows_for(most: int, rows: int, vectors: int) -> int:
    """Rows of a tile, of so many ``vectors`` each, with which ``rows`` of them are computed soonest."""
    return min(
        range(1, max(1, min(most, rows)) + 1), key=lambda tile: (step_cost(tile, rows, vectors), -tile)
    )


def step_cost(tile: int, rows: int, vectors: int) -> int:
    """What a step of the depth costs in the tiles that ``rows`` are divided into, the last of which may overlap."""
    return -(-rows // tile) * (max(tile * vectors, VECTORS_IN_FLIGHT) + PASS_OVERHEAD)


def lanes_of(target: Any) -> int:
    """Elements of four bytes that a vector of a target's has."""
    return vectors_of(target)[0]


def vectors_of(target: Any) -> tuple[int, int]:
    """Lanes of float32 and number of the vector registers of a target's instructions."""
    if has_feature(target, "avx512f"):
        return 16, 32
    if has_feature(target, "avx"):
        return 8, 16
    return 4, 32 if has_feature(target, "neon") else 16
