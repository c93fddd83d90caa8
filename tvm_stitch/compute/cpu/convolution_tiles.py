# SPDX-License-Identifier: Apache-2.0
"""Divide a convolution on a CPU into tasks: lines and panels that copy the least data and read the fewest weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...cost.choices import Choices
from ...cost.products import elapsed, step_cost
from ...graph.extent import product
from ...target import vectors_of
from ..convolution import Convolution
from .tiles import (
    Tiles,
    cores_of,
    has_rows_outside,
    most_rows,
    tasks_of,
    tile_rows_for,
)

if TYPE_CHECKING:
    from tvm.target import Target


def tiles_for_convolution(target: Target, choices: Choices, conv: Convolution) -> Tiles:
    """Return the tiles of a convolution on a CPU. Output positions take the role of a product's rows."""
    lanes, registers = vectors_of(target)
    *outer, lines, positions = (w.outputs for w in conv.windows)
    columns = 2 * lanes
    while not conv.is_depthwise and columns > 4 and columns // 2 >= conv.outputs:
        columns //= 2
    rows = tile_rows_for(most_rows(registers), positions, max(1, columns // lanes), choices)
    task_positions = (
        max(1, positions)
        if positions < 2 * choices.convolution_task_positions
        else -(-choices.convolution_task_positions // rows) * rows
    )
    parts = -(-positions // task_positions)
    images = math.prod([conv.batch if isinstance(conv.batch, int) else 1, *outer, parts])
    work = images * lines * task_positions * conv.columns * conv.reduction
    parallel = not isinstance(conv.batch, int) or work > choices.serial_multiplications
    if conv.is_depthwise:
        panels = -(-conv.columns // columns)
        task_rows, task_panels = _depthwise_task(images, lines, task_positions, panels, choices)
        return Tiles(
            choices, lanes, rows, columns, task_rows, task_panels, parallel, task_positions, rows_outside=True
        )
    wanted = work // choices.serial_multiplications  # number of tasks that justify their start-up time
    divided = _Divided(
        choices,
        conv,
        images,
        cores_of(target, choices, wanted),
        lanes,
        columns,
        most_rows(registers),
        rows,
        task_positions,
        parts == 1,
    )
    task_rows, task_panels = divided.task()
    across = divided.across_lines(task_rows)
    rows = divided.most if across else rows
    return Tiles(
        choices,
        lanes,
        rows,
        columns,
        task_rows,
        task_panels,
        parallel,
        task_positions,
        across_lines=across,
        rows_outside=divided.has_rows_outside(task_rows, task_panels),
    )


def _depthwise_task(
    images: int, lines: int, positions: int, panels: int, choices: Choices
) -> tuple[int, int]:
    """Return the lines and panels of a task of a depthwise convolution."""
    task_rows = max(
        1,
        min(
            lines,
            max(choices.depthwise_task_lines, -(-choices.convolution_task_positions // max(1, positions))),
        ),
    )
    task_panels = panels
    while tasks_of(images, lines, panels, task_rows, task_panels) < choices.least_tasks:
        if task_rows > choices.depthwise_task_lines:
            task_rows = -(-task_rows // 2)
        elif task_panels > 1:
            task_panels = -(-task_panels // 2)
        elif task_rows > 2:
            task_rows -= 1
        else:
            break
    return task_rows, task_panels


@dataclass(frozen=True)
class _Divided:
    """Possible divisions into tasks of a convolution that mixes channels.

    Attributes:
        choices: the device's constants of choice.
        conv: the convolution.
        images: number of images, times all other divisions except lines and panels.
        cores: candidate numbers of cores that the tasks keep busy.
        lanes, columns: of a vector, and of a tile.
        most, rows: rows of a tile at most, and of one that stays on a line.
        positions: positions of a line, in a task.
        whole: whether these are all positions of a line.
    """

    choices: Choices
    conv: Convolution
    images: int
    cores: tuple[int, ...]
    lanes: int
    columns: int
    most: int
    rows: int
    positions: int
    whole: bool

    def task(self) -> tuple[int, int]:
        """Return the lines and panels of a task, for the division with the least time."""
        positions = 2 * self.choices.convolution_task_positions
        most = max(
            1,
            min(
                self.lines, max(self.choices.convolution_task_lines, -(-positions // max(1, self.positions)))
            ),
        )
        of_tasks = sorted({-(-self.panels // parts) for parts in range(1, self.panels + 1)}, reverse=True)
        return min(
            ((rows, panels) for rows in range(most, 0, -1) for panels in of_tasks or [1]),
            key=lambda task: self._cost(*task),
        )

    def across_lines(self, task_rows: int) -> bool:
        """Return whether the tiles of a task of ``task_rows`` lines continue from line to line."""
        return self._step(task_rows) < task_rows * step_cost(
            self.rows, self.positions, self.vectors, self.choices
        )

    def has_rows_outside(self, task_rows: int, task_panels: int) -> bool:
        """Return whether consecutive tasks share lines."""
        read = product(self.conv.data.inner)
        return has_rows_outside(
            read if isinstance(read, int) else None,
            self.conv.reduction * self.conv.columns,
            self.images * -(-self.lines // task_rows),
            -(-self.panels // max(1, task_panels)),
            self.choices,
        )

    @property
    def lines(self) -> int:
        return self.conv.windows[-2].outputs

    @property
    def vectors(self) -> int:
        return max(1, self.columns // self.lanes)

    @property
    def panels(self) -> int:
        return self.conv.groups * -(-self.conv.outputs // self.columns)

    def _cost(self, rows: int, panels: int) -> float:
        """Return the time of all tasks, in multiplications of vectors."""
        blocks, parts = -(-self.lines // rows), -(-self.panels // max(1, panels))
        weights = self.vectors * self._cost_of_weights(rows, panels)
        *_, lines, positions = self.conv.windows
        copied = lines.span(rows) * positions.span(self.positions) * self.conv.groups * self.conv.inputs
        task = panels * self.conv.reduction * (self._step(rows) + weights)
        task += copied / self.lanes * self._cost_of_copy
        busy = self.lines / max(1, blocks * rows) * self.panels / max(1, parts * panels)
        return elapsed(self.images * blocks * parts, task, min(1.0, busy), self.cores)

    def _cost_of_weights(self, rows: int, panels: int) -> float:
        """Return the cost of reading a vector of weights. Consecutive tasks of a core may read the same weights."""
        if self.has_rows_outside(rows, panels):
            return self.choices.weights_cost
        of_panels = self.images * -(-self.lines // rows)
        of_core = of_panels * -(-self.panels // max(1, panels)) // max(self.cores)
        reading = max(1, min(of_panels, of_core))
        return (
            self.choices.weights_again_cost
            + (self.choices.weights_cost - self.choices.weights_again_cost) / reading
        )

    @property
    def _cost_of_copy(self) -> int:
        return self.choices.copy_cost if self.conv.data.in_order else self.choices.transposition_cost

    def _step(self, rows: int) -> float:
        """Return the cost of a step of the reduction, in one panel of a task of ``rows`` lines."""
        on_lines = rows * step_cost(self.rows, self.positions, self.vectors, self.choices)
        fewest = self.positions * (self.lines % rows or rows)
        if not self.whole or fewest < self.most or not self.conv.residues.are_equal:
            return on_lines
        return min(
            on_lines,
            self.choices.across_lines_cost
            * step_cost(self.most, rows * self.positions, self.vectors, self.choices),
        )
