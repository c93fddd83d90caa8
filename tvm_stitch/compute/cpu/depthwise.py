# SPDX-License-Identifier: Apache-2.0
"""A depthwise convolution on a CPU, channels innermost: vectors of channels, some positions at a time."""

from __future__ import annotations

from ... import compat
from ...codegen import builder as B
from ...compat import Expr, tir
from ...graph.extent import flatten
from .convolution import ConvolutionTasks, Positions
from .data_block import DataBlock
from .factors import widened
from .micro_kernel.sums import emit_sums
from .residues import Residue
from .write_back import Rows


class DepthwiseTasks(ConvolutionTasks):
    """The tasks of a convolution that does not mix channels."""

    def begin(self) -> None:
        self.data = DataBlock(self.conv, self.outputs, self.tiles, self.width())

    def reduction_of(self, taps: Residue) -> list[int]:
        return [of_axis.kernel for of_axis in taps]

    def width(self) -> int:
        return self.tiles.within(self.conv.columns)

    def panels(self) -> int:
        return -(-self.conv.columns // self.width())

    def panel(self, panel: Expr) -> None:
        width, columns = self.width(), self.conv.columns
        column = panel * B.i64(width)
        if columns % width:
            column = tir.min(column, B.i64(columns - width))
        if self.number_of_residue == 0:  # later residue classes read it too
            self.data.fill(self.image, self.positions, column)
        self.lines(lambda number, positions, rows: self.tile(positions, rows, column))

    def tile(self, positions: Positions, rows: Rows, column: Expr) -> None:
        """Emit a tile of positions."""
        width, lanes = self.width(), self.tiles.lanes

        def term(i: int, k: list[Expr], c: Expr) -> Expr:
            data = self.data.at(self.offsets(*positions(i), k), c)
            position = B.i64(self.reduction_before) + flatten(k, self.reduction)
            return data * widened(compat.load(self.packed, [position, column + c]), self.conv.summed)

        # Unrolled, so that neighbouring positions share the elements that they read.
        sums = emit_sums(
            self.rows, width, lanes, self.reduction, term, self.tiles.choices, self.conv.summed, unrolled=1
        )
        self.out.store(sums, rows, column, width, min(lanes, width))
