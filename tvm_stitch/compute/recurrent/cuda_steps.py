# SPDX-License-Identifier: Apache-2.0
"""The code of one recurrent layer for a block of a CUDA kernel: first states, steps, and last states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ... import compat
from ...codegen import builder as B
from ...compat import Buffer, Expr, tir
from ...repairs.tir.opaque import as_c_type
from ..cuda.splits import Cluster
from .cell import Layer, Part, parts_of
from .cuda_calls import DeviceFunctions
from .cuda_cell import LaneCell
from .cuda_plan import WARP, Division


@dataclass(frozen=True, eq=False)
class Place:
    """The part of a layer that a block computes.

    Attributes:
        cluster: the block's cluster, and its rank in it.
        thread: the running thread of the block.
        first_row: the cluster's first row of the batch.
        rows: rows of the cluster.
        column: the layer's first column of the projected inputs.
    """

    cluster: Cluster
    thread: Expr
    first_row: Expr
    rows: Expr
    column: int


class Steps:
    """Emits a layer for a block. Each lane has cells of one unit, in one row or several."""

    def __init__(
        self,
        layer: Layer,
        division: Division,
        of: Mapping[str, Buffer],
        device: DeviceFunctions,
        place: Place,
        extents: tuple[Expr, Expr],
    ):
        """Prepare the indices of the lane's cell.

        Args:
            layer: the layer.
            division: its division.
            of: operands and results by name.
            device: the device functions and memory of the block.
            place: the block's part of the layer.
            extents: numbers of steps and of rows of the batch.
        """
        d, cell = division, layer.cell
        self.cell, self.device, self.steps, self.cluster = cell, device, extents[0], place.cluster
        warp = tir.floordiv(place.thread, B.i64(WARP))
        lane = tir.floormod(place.thread, B.i64(WARP))
        own = warp * B.i64(d.units_of_warp) + tir.floormod(lane, B.i64(d.units_of_warp))
        self.first_unit, self.rows, self.first_row = (
            place.cluster.rank * B.i64(d.units),
            place.rows,
            place.first_row,
        )
        unit = self.first_unit + own
        self.state = of.get("h")
        self.several = self.rows > d.cell_rows
        self.cells = []
        for number in range(d.cells_of_lane):
            row = tir.floordiv(lane, B.i64(d.units_of_warp)) + B.i64(number * d.cell_rows)
            there = tir.all(
                own < d.units, unit < cell.hidden, row < self.rows, row < (number + 1) * d.cell_rows
            )
            self.cells.append(
                LaneCell(layer, of, unit, place.first_row + row, there, place.column, self.steps)
            )

    def _each(self, emit: Callable[[LaneCell], None]) -> None:
        """Emit the code of all cells. If the cluster has few rows, the lane has one cell."""
        emit(self.cells[0])
        if len(self.cells) > 1:
            with B.when(self.several):
                for cell in self.cells[1:]:
                    emit(cell)

    def emit(self) -> None:
        """Emit all steps."""
        self._enter()
        with B.loop("serial", self.steps, "step") as step:
            for part in parts_of(self.cell, step):
                self._part(part)
        self._leave()

    def _enter(self) -> None:
        """Load the first states, the weights that stay, and the inputs of the first step."""
        h = None if self.state is None else tir.address_of(B.fetch(self.state, self.first_row, 0))
        self.device.enter(h, self.first_unit, self.rows)
        known = compat.int_value(self.steps)
        has_steps = None if known else as_c_type(self.steps, "int64") > 0
        for cell in self.cells:
            cell.enter(has_steps)
        B.block_barrier()
        if self.cluster.blocks > 1:
            self.cluster.meet()  # nobody sends to a block that does not run yet

    def _leave(self) -> None:
        """Store the last states of the lane's cells."""
        self._each(LaneCell.leave)

    # -- a step ----------------------------------------------------------------------------------------------------
    def _part(self, part: Part) -> None:
        """Emit a part of a step: the wait for its operand, its products, its cells, and the exchange behind it."""
        step, one, two = part.step, B.i64(1), B.i64(2)
        place = (self.first_unit, self.rows)
        if part.second:
            buffer = two
            self.device.wait(buffer, tir.floormod(step, two), *place)
        else:
            buffer = tir.floormod(step, two)
            with B.when(step > 0):  # the first states are there
                self.device.wait(buffer, tir.floormod(tir.floordiv(step - one, two), two), *place)
        products = self.device.products(buffer, part.gates, *place)
        count = len(part.gates)
        for number, cell in enumerate(self.cells):
            with B.when(self.several if number else None):
                cell.compute(part, products[number * count : (number + 1) * count])
        if self.cell.two_products and not part.second:
            self._send(two)
            return
        with B.when(step + one < self.steps):  # nobody waits for the last states
            self._send(tir.floormod(step + one, two))
        self._each(lambda cell: cell.store(step))

    def _send(self, buffer: Expr) -> None:
        """Send the states of the warp's cells to a buffer of all blocks."""
        for number, cell in enumerate(self.cells):
            with B.when(self.several if number else None):
                self.device.send(cell.sent, number, buffer, self.first_unit, self.rows)
