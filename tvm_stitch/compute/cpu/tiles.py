# SPDX-License-Identifier: Apache-2.0
"""Division of matrix products and attention on a CPU, and all constants of choice, those of convolutions included.

A core may start two vector additions in a cycle, and each takes four cycles. A tile of fewer than 8 vectors of sums
leaves the core idle, and one that ends behind the last row computes rows twice. Tiles have the number of rows that
minimises the cost of both. :mod:`.convolution_tiles` divides convolutions by the same measure.

TVM gives each thread as many neighbouring tasks as the others, or one more. So 28 equal tasks take 16 cores as long
as 32. The division is chosen whose most loaded core is done first, on the target's ``num-cores``. If those are
unknown, the average over several numbers of cores counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from ...cost.choices import Choices
from ...cost.products import elapsed, matrix_step_cost, step_cost
from ...graph.extent import Extent
from ...target import vectors_of
from ..attention import Attention
from .amx.instruction import COLUMNS, MOST_ROWS, TILE_ROWS, TileInstruction
from .dot_instruction import DotInstruction

if TYPE_CHECKING:
    from tvm.target import Target

CACHE_LINE = 64
"""Bytes that are fetched at once."""


@dataclass(frozen=True)
class Tiles:
    """The sizes of a kernel's tiles.

    Attributes:
        choices: the device's constants of choice.
        lanes: float32 elements of a vector.
        rows: rows of the micro-kernel, which keeps ``rows`` x ``columns`` sums in registers.
        columns: columns of the micro-kernel and of a panel, a multiple of ``lanes``.
        task_rows, task_panels: size of a parallel task. For a convolution, rows are lines along its last axis.
        parallel: whether tasks run in parallel at all.
        task_positions: positions of a line, in a convolution's task.
        across_lines: whether a convolution's tiles continue from line to line.
        rows_outside: whether consecutive tasks share rows, rather than panels.
        dot_rows: rows of a tile of ``dot_columns`` whose sums run along the reduction, each in a vector.
        instruction: multiplies groups of elements, or tiles of them. None if single elements are multiplied.
        packs_panels: whether each task packs the right side for the instruction, panel by panel.
    """

    choices: Choices
    lanes: int
    rows: int
    columns: int
    task_rows: int
    task_panels: int
    parallel: bool
    task_positions: int = 0
    across_lines: bool = False
    rows_outside: bool = False
    dot_rows: int = 1
    instruction: DotInstruction | TileInstruction | None = None
    packs_panels: bool = False

    @property
    def group(self) -> int:
        """Neighbouring elements of the reduction dimension that lie together in a packed right side."""
        return 1 if self.instruction is None else self.instruction.group

    @property
    def groups(self) -> DotInstruction | None:
        """The instruction, if it multiplies groups of elements."""
        return self.instruction if isinstance(self.instruction, DotInstruction) else None

    @property
    def at_once(self) -> int:
        """Steps of a packed weight that one instruction multiplies."""
        return TILE_ROWS if isinstance(self.instruction, TileInstruction) else 1

    def packed_dtype(self, dtype: str) -> str:
        """Return the type of a packed weight with elements of ``dtype``."""
        return dtype if self.instruction is None else self.instruction.right

    def within(self, columns: int) -> int:
        """Return the columns of a panel if the last panel overlaps the one before: no more than ``columns``."""
        width = self.columns
        while width > columns:
            width //= 2
        return width


def tiles_for(
    target: Target,
    choices: Choices,
    batch: Extent,
    rows: Extent,
    columns: Extent,
    reduction: Extent,
    instruction: DotInstruction | None = None,
    packs_panels: bool = False,
) -> Tiles:
    """Return the tiles of a product of these extents on a CPU.

    The registers hold the micro-kernel's sums, two vectors of the right side and one element of the left one. This
    allows 8 x 2 vectors of 32 registers (AVX-512, NEON), or 6 x 2 of 16. If an instruction multiplies groups of the
    reduction dimension along it, they are 4 x 6 vectors of 32.

    Args:
        target: an llvm target.
        choices: the device's constants of choice.
        batch, rows, columns, reduction: extents of the product.
        instruction: multiplies groups of elements, if the right side is no constant.
        packs_panels: whether each task packs the right side for the instruction.
    """
    lanes, registers = vectors_of(target)
    along = instruction is not None and instruction.along
    tile_rows = most_rows(registers) // 2 if along else most_rows(registers)
    vectors = choices.group_dot_columns if along else 2
    if isinstance(rows, int):
        tile_rows = tile_rows_for(tile_rows, rows, vectors, choices)
    tile_columns = _panel_along(reduction, choices) if along else 2 * lanes
    most_task_rows = choices.panel_task_rows if packs_panels else choices.product_task_rows
    packing = choices.panel_cost if packs_panels else 0
    task_rows, task_panels = -(-most_task_rows // tile_rows) * tile_rows, choices.product_task_panels
    parallel = True
    if isinstance(batch, int) and isinstance(rows, int) and isinstance(columns, int):
        panels = -(-columns // tile_columns)
        task_rows, task_panels = _task(
            batch,
            rows,
            panels,
            tile_rows,
            lambda some: packing + step_cost(tile_rows, some, vectors, choices),
            most_task_rows,
            cores_of(target, choices),
            choices,
        )
        if isinstance(reduction, int):
            parallel = batch * rows * columns * reduction > choices.serial_multiplications
    outside = False
    if isinstance(columns, int) and isinstance(reduction, int):
        left, row_tasks = (rows * reduction, -(-rows // task_rows)) if isinstance(rows, int) else (None, 1)
        outside = has_rows_outside(
            left, columns * reduction, row_tasks, -(-columns // (task_panels * tile_columns)), choices
        )
    return Tiles(
        choices,
        lanes,
        tile_rows,
        tile_columns,
        task_rows,
        task_panels,
        parallel,
        rows_outside=outside,
        dot_rows=min(tile_rows, most_rows(registers) // 2),
        instruction=instruction,
        packs_panels=packs_panels,
    )


def _panel_along(reduction: Extent, choices: Choices) -> int:
    """Return the columns of a panel whose vectors run along the reduction. It stays in the second-level cache."""
    columns = choices.group_dot_panel
    if isinstance(reduction, int):
        while columns > choices.group_dot_columns and columns * reduction > choices.cached_elements:
            columns //= 2
    return columns


def matrix_tiles_for(
    target: Target,
    choices: Choices,
    batch: Extent,
    rows: Extent,
    columns: int,
    reduction: int,
    instruction: TileInstruction,
    packs_panels: bool = False,
) -> Tiles:
    """Return the tiles of a product of these extents, computed by an instruction for tiles.

    The right side is a packed weight, or each task packs it (``packs_panels``).

    Tiles of rows are as equal as possible, because the last one overlaps the one before.
    """
    tile_rows = MOST_ROWS
    if isinstance(rows, int):
        tile_rows = -(-rows // max(1, -(-rows // MOST_ROWS)))
        tile_rows = max(1, tile_rows if tile_rows <= TILE_ROWS else tile_rows + tile_rows % 2)
    panels = -(-columns // COLUMNS)
    task_rows, task_panels = (
        -(-choices.product_task_rows // tile_rows) * tile_rows,
        choices.product_task_panels,
    )
    parallel, outside = True, columns * reduction <= choices.cached_elements
    if isinstance(batch, int) and isinstance(rows, int):
        task_rows, task_panels = _task(
            batch,
            rows,
            panels,
            tile_rows,
            lambda some: matrix_step_cost(tile_rows, some, choices),
            choices.matrix_tiles_task_rows,
            cores_of(target, choices),
            choices,
        )
        parallel = batch * rows * columns * reduction > choices.matrix_tiles_serial_multiplications
        row_tasks, panel_tasks = -(-rows // task_rows), -(-panels // task_panels)
        outside = has_rows_outside(rows * reduction, columns * reduction, row_tasks, panel_tasks, choices)
    return Tiles(
        choices,
        lanes_of(target),
        tile_rows,
        COLUMNS,
        task_rows,
        task_panels,
        parallel,
        rows_outside=outside,
        instruction=instruction,
        packs_panels=packs_panels,
    )


def _task(
    batch: int,
    rows: int,
    panels: int,
    tile: int,
    step: Callable[[int], float],
    most_rows: int,
    cores: Sequence[int],
    choices: Choices,
) -> tuple[int, int]:
    """Return the rows and panels of a product's task, for the division with the least time.

    Args:
        batch, rows, panels: extents of the product.
        tile: rows of a tile.
        step: cost of one step of the reduction in one panel, from a number of rows.
        most_rows: most rows of a task, rounded up to whole tiles.
        cores: numbers of cores.
        choices: the device's constants of choice.
    """
    if not rows or not panels:
        return tile, 1

    def cost(task: tuple[int, int]) -> float:
        of_rows, of_panels = task
        tasks = tasks_of(batch, rows, panels, of_rows, of_panels)
        of_panel = 2 * choices.weights_cost + step(min(of_rows, rows))
        busy = rows / (of_rows * -(-rows // of_rows)) * panels / (of_panels * -(-panels // of_panels))
        return elapsed(tasks, of_panels * of_panel, min(1.0, busy), cores)

    most = min(-(-most_rows // tile), -(-rows // tile))
    divisions = product(range(most, 0, -1), range(min(choices.product_task_panels, panels), 0, -1))
    return min(((tiles * tile, of_panels) for tiles, of_panels in divisions), key=cost)


def has_rows_outside(
    left: int | None, right: int, row_tasks: int, panel_tasks: int, choices: Choices
) -> bool:
    """Return whether consecutive tasks should share rows, because then less is read into the cache.

    The side that changes from task to task is read once if it stays in the cache. Otherwise it is read once for
    each task of the other side. If both are equal, tasks share rows, because rows are then written whole and in
    order.

    Args:
        left, right: elements of both sides. ``left`` is None for an unknown number of rows.
        row_tasks, panel_tasks: numbers of tasks into which they are divided.
    """
    if left is None:
        return right <= choices.cached_elements
    by_rows = left + right * (1 if right <= choices.cached_elements else row_tasks)
    by_panels = right + left * (1 if left <= choices.cached_elements else panel_tasks)
    return by_rows <= by_panels


def cores_of(target: Target, choices: Choices, most: int | None = None) -> tuple[int, ...]:
    """Return numbers of cores to keep busy: the target's if known. ``most`` limits them to the amount of work."""
    known = target.attrs.get("num-cores")
    numbers = choices.assumed_cores if known is None else (int(known),)
    return numbers if most is None else tuple(sorted({min(number, max(1, most)) for number in numbers}))


def attention_tile(target: Target, choices: Choices, attention: Attention) -> Tiles:
    """Return the tiles of attention on a CPU. Columns are queries, and a task has ``task_panels`` panels of them."""
    lanes, registers = vectors_of(target)
    rows, queries = most_rows(registers), attention.queries
    columns = lanes if isinstance(queries, int) and queries <= lanes else 2 * lanes
    panels = choices.attention_task_panels
    if isinstance(queries, int):
        heads = math.prod(extent if isinstance(extent, int) else 1 for extent in attention.leading)
        of_head = -(-queries // columns)
        panels = max(1, min(panels, of_head))
        while panels > 1 and heads * -(-of_head // panels) < choices.least_tasks:
            panels //= 2
    return Tiles(choices, lanes, rows, columns, rows, panels, True)


def tasks_of(batch: int, rows: int, panels: int, task_rows: int, task_panels: int) -> int:
    return batch * -(-rows // task_rows) * -(-panels // task_panels)


def most_rows(registers: int) -> int:
    """Return the rows of the micro-kernel, of two vectors each."""
    return 8 if registers >= 32 else 6


def tile_rows_for(most: int, rows: int, vectors: int, choices: Choices) -> int:
    """Return the rows of a tile, of ``vectors`` each, with which ``rows`` rows take the least time."""
    return min(
        range(1, max(1, min(most, rows)) + 1),
        key=lambda tile: (step_cost(tile, rows, vectors, choices), -tile),
    )


def lanes_of(target: Target) -> int:
    """Return the number of elements of four bytes in a vector of a target."""
    return vectors_of(target)[0]
