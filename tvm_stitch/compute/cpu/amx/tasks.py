# SPDX-License-Identifier: Apache-2.0
"""The matrix product on a CPU with AMX: its micro-kernel multiplies tiles, and stores sums to memory.

A right side that is no constant is packed by each task, panel by panel (:mod:`..micro_kernel.panel`).
"""

from __future__ import annotations

from ....codegen import builder as B
from ....codegen.cpu.tasks import times
from ....compat import Expr, T, tir
from ....graph.extent import Extent, as_expr
from ..factors import Kept
from ..matmul import MatmulTasks
from .instruction import COLUMNS, TILE_ROWS, TileInstruction


class MatrixTileTasks(MatmulTasks):
    """Tasks that each compute some rows and some panels of columns by an instruction for tiles.

    A tile of sums has up to two blocks of rows. A task configures the registers for the rows of its blocks, and
    releases them at its end. The last tile of a task overlaps the one before. A task of fewer rows than a tile has a
    smaller one. The whole reduction is one sum, as in other libraries: factors of bfloat16 have larger errors.
    """

    def emit(self) -> None:
        assert isinstance(self.tiles.instruction, TileInstruction)
        self.tile_instruction = self.instruction = self.tiles.instruction
        self.tile_instruction.require()
        super().emit()

    def _begin(self, width: int) -> None:
        assert width == COLUMNS
        self.tile_rows = self.tiles.rows
        self.sums = B.stack([self.tile_rows * width], self.product.summed, "sums")
        self.out.begin(self.tile_rows, width, self.sums)
        self._begin_panel(width)

    def _width(self) -> int:
        return COLUMNS

    @property
    def _steps(self) -> int:
        """Instructions along the reduction."""
        assert isinstance(self.product.reduction, int)
        return self.tile_instruction.steps(self.product.reduction)

    def _prepare(self, count: Expr) -> None:
        most, block = self.tile_rows, self._block_rows
        whole, limit = tir.GE(count, B.i64(most)), B.i64(TILE_ROWS)
        first = tir.Select(whole, B.i64(block), tir.min(count, limit))
        second = tir.Select(whole, B.i64(block), tir.max(count - limit, B.i64(1)))
        self.tile_instruction.configure(first, second)

    def _end(self) -> None:
        self.tile_instruction.release()

    @property
    def _block_rows(self) -> int:
        """Rows of each block of a whole tile."""
        return self.tile_rows if self.tile_rows <= TILE_ROWS else self.tile_rows // 2

    def _rows(self, batch: Expr, first: Expr, count: Expr, start: Expr, width: int, stored: int) -> None:
        most, block = self.tile_rows, self._block_rows

        def tile(at: Expr, rows: Extent, blocks: int, of_block: int) -> None:
            row = self._number(first + at, "row")
            line = self._number(batch * as_expr(self.product.rows) + row, "line")
            if isinstance(rows, int):
                self.out.fetch(rows, lambda i: line + i, start, stored)
            self._multiply(row, line, blocks, of_block, start, stored)
            self.out.store_tile(rows, width, lambda i: line + i, start, stored, self.tiles.lanes)

        def whole(tiles: Extent) -> None:
            with times("serial", tiles, "tile") as number:
                at = tir.min(number * B.i64(most), count - B.i64(most))
                tile(at, most, -(-most // TILE_ROWS), block)

        rows = self.product.rows
        if isinstance(rows, int) and rows % most == 0:
            whole(tir.floordiv(count, B.i64(most)))
            return
        with T.If(tir.GE(count, B.i64(most))):
            with T.Then():
                whole(tir.floordiv(count + B.i64(most - 1), B.i64(most)))
            with T.Else():
                limit = TILE_ROWS
                if most <= TILE_ROWS:
                    tile(B.i64(0), count, 1, limit)
                    return
                B.either(
                    tir.GT(count, B.i64(limit)),
                    lambda: tile(B.i64(0), count, 2, limit),
                    lambda: tile(B.i64(0), count, 1, limit),
                )

    def _multiply(self, row: Expr, line: Expr, blocks: int, of_block: int, start: Expr, stored: int) -> None:
        p, instruction = self.product, self.tile_instruction
        assert isinstance(p.reduction, int)
        each = p.reduction
        left = self.left, (row if p.left_shared else line) * B.i64(each), each
        if self.block is not None:
            each = Kept.by(instruction, p.summed).filled(p.reduction)
            left = self.block, (row - self.first) * B.i64(each), each
        if self.panel is not None:
            right = self.panel, B.i64(0)
        else:
            assert self.packed is not None
            panel = tir.floordiv(start, B.i64(COLUMNS)) * B.i64(
                self._steps * TILE_ROWS * COLUMNS * instruction.group
            )
            right = B.flat_view(self.packed), panel
        columns = 1 if stored <= COLUMNS // 2 else 2
        instruction.multiply(self.sums, (blocks, columns), of_block, left, right, self._steps)
