# SPDX-License-Identifier: Apache-2.0
"""The matrix product on a CPU: a micro-kernel with its sums in registers, over panels of columns.

A panel of the right side is ``columns`` neighbouring columns over the whole reduction dimension. It fits
the second-level cache, and the rows of a task pass over it in tiles. Panels of a weight are contiguous and padded
with zeros, as GotoBLAS packs them (Goto and van de Geijn, 2008). The right side of other products is read as
stored. If its columns are contiguous, vectors run along the reduction dimension (see
:func:`~.micro_kernel.dots.emit_dots`). Or panels are copied, if that dimension is short and many rows read them.
Consecutive tasks share rows or panels, whichever rereads more from the cache. A long reduction is divided into
blocks. Tails of rows and columns are tiles that overlap the tiles before.

Half types become float32, and bytes int32, as they are read. Each panel reads the left side again, so a copy of a
task's rows is widened instead. If the CPU multiplies groups of elements, they stay as narrow as the instruction
takes them.
"""

from __future__ import annotations

from collections.abc import Callable

from ... import compat
from ...codegen import builder as B
from ...codegen.cpu.columns import count_of
from ...codegen.cpu.tasks import times
from ...compat import Buffer, Expr, T, tir
from ...graph.extent import Extent, as_expr, ceildiv, unflatten
from ...graph.extent import product as product_of
from ..contraction import Contraction
from .dot_instruction import DotInstruction, vector
from .factors import widened
from .micro_kernel.dots import Share, emit_dots
from .micro_kernel.loops import each_tile, each_width
from .micro_kernel.panel import copy_panel, is_copied, pack_panel, panel_dtype, panel_steps
from .micro_kernel.prefetch import Ahead
from .micro_kernel.reduction_blocks import ReductionBlocks, blocks_of, last_of
from .micro_kernel.row_copy import RowCopy
from .micro_kernel.sums import emit_sums
from .micro_kernel.tile import Totals
from .tiles import Tiles
from .write_back import WriteBack


class MatmulTasks:
    """Tasks that each compute some rows and some panels of columns.

    Args:
        product: the matrix product. ``columns`` is a number if the right side is packed.
        tiles: the sizes of tiles.
        packed: the right side in panels (see :mod:`tvm_stitch.compute.cpu.packing`), which replaces its parameter.
            None if it is read as stored.
        out: stores the tiles.
    """

    def __init__(self, product: Contraction, tiles: Tiles, packed: Buffer | None, out: WriteBack):
        self.product, self.tiles, self.packed, self.out = product, tiles, packed, out
        self.instruction = tiles.instruction
        self.copied: Buffer | None = None
        self.panel: Buffer | None = None
        self.dots = False
        self.block: Buffer | None = None

    def emit(self) -> None:
        """Emit a parallel loop over the tasks into the kernel under construction."""
        p, tiles = self.product, self.tiles
        self.left = B.flat_view(p.left.buffer)
        self.right = B.flat_view(p.right.buffer) if self.packed is None else self.packed
        width = self._width()
        all_panels = ceildiv(p.columns, width)
        row_tasks = ceildiv(p.rows, tiles.task_rows)
        panel_tasks = ceildiv(p.columns, width * tiles.task_panels)
        divided = (
            [p.batch, row_tasks, panel_tasks] if tiles.rows_outside else [p.batch, panel_tasks, row_tasks]
        )
        with B.loop("parallel" if tiles.parallel else "serial", as_expr(product_of(divided)), "task") as task:
            self._begin(width)
            batch, *parts = unflatten(task, divided)
            self.matrix = self._matrix(batch)
            row_task, panel_task = parts if tiles.rows_outside else reversed(parts)
            first = self._number(row_task * B.i64(tiles.task_rows), "first")
            count = self._number(count_of(p.rows, tiles.task_rows, first), "count")
            self.rows_copy = RowCopy(p, self.instruction, self.tile_rows, tiles.choices)
            if self.rows_copy.is_needed():
                matrix, self.first = self._left_batch(batch), first
                self.block = self.rows_copy.emit(self.left, matrix, first, count, self._most_rows())
            self._prepare(count)
            first_panel = self._number(panel_task * B.i64(tiles.task_panels), "panel")
            with times("serial", count_of(all_panels, tiles.task_panels, first_panel), "panel") as panel:
                self._panel(batch, first, count, first_panel + panel, width)
            self._end()

    def _begin(self, width: int) -> None:
        """Emit the buffers of a task, whose panels have ``width`` columns."""
        p, tiles = self.product, self.tiles
        self._begin_panel(width)
        if self.packed is None and is_copied(p, tiles, width):
            assert isinstance(p.reduction, int)
            self.copied = B.stack([p.reduction * width], p.summed, "panel")
        self.dots = self.packed is None and p.transposed and not p.left_transposed
        self.dots = self.dots and self.copied is None and self.panel is None
        self.reduction = p.reduction
        if isinstance(self.instruction, DotInstruction) and not self.dots:
            assert isinstance(p.reduction, int)
            self.reduction = self.instruction.steps(p.reduction)
        self.tile_rows = tiles.dot_rows if self.dots else tiles.rows
        self.out.begin(self.tile_rows, width)
        self.blocks = None if self.dots else blocks_of([self.reduction], tiles.choices)
        if self.blocks is not None:
            self.totals = Totals(
                -(-self._most_rows() // self.tile_rows), self.tile_rows, width, tiles.lanes, p.summed
            )

    def _begin_panel(self, width: int) -> None:
        """Emit the buffer of a panel, if each task packs the right side for an instruction."""
        if self.tiles.packs_panels:
            size = panel_steps(self.product, self.tiles) * width * self.tiles.group
            self.panel = B.stack([size], panel_dtype(self.tiles), "panel")

    def _prepare(self, count: Expr) -> None:
        """Emit the preparation of the registers for a task of ``count`` rows."""

    def _end(self) -> None:
        """Emit the end of a task."""

    def _number(self, value: Extent, name: str) -> Expr:
        """Bind a number to a variable if the sizes of tasks are symbolic."""
        p = self.product
        return as_expr(B.number_of(value, name, (p.batch, p.rows, p.columns)))

    def _width(self) -> int:
        """Return the columns of a panel."""
        if self.packed is not None or self.tiles.packs_panels or not isinstance(self.product.columns, int):
            return self.tiles.columns
        return self.tiles.within(self.product.columns)

    def _most_rows(self) -> int:
        """Return the rows of a task."""
        rows, most = self.product.rows, self.tiles.task_rows
        return max(1, min(most, rows)) if isinstance(rows, int) else most

    def _panel(self, batch: Expr, first: Expr, count: Expr, panel: Expr, width: int) -> None:
        """Emit the rows of a task in one panel of columns."""
        p, tiles, columns = self.product, self.tiles, self.product.columns
        start = panel * B.i64(width)
        if self.packed is not None:
            assert isinstance(columns, int)
            rows = self._rows
            each_width(panel, columns, width, lambda some: rows(batch, first, count, start, width, some))
            return
        if self.panel is not None:
            assert isinstance(columns, int)
            to = self.panel

            def packed_rows(stored: int) -> None:
                pack_panel(p, self.right, self.matrix, start, stored, to, self.tiles)
                self._rows(batch, first, count, start, width, stored)

            each_width(panel, columns, width, packed_rows)
            return
        if isinstance(columns, int):
            if columns % width:
                start = tir.min(start, B.i64(columns - width))
            if self.copied is not None:
                copy_panel(p, self.right, self.matrix, start, width, self.copied, tiles.lanes)
            self._rows(batch, first, count, start, width, width)
            return
        with T.If(tir.GE(as_expr(columns), B.i64(width))):
            with T.Then():
                start = tir.min(start, as_expr(columns) - B.i64(width))
                self._rows(batch, first, count, start, width, width)
            with T.Else():
                with B.loop("serial", as_expr(columns), "column") as column:
                    self._rows(batch, first, count, column, 1, 1)

    def _rows(self, batch: Expr, first: Expr, count: Expr, start: Expr, width: int, stored: int) -> None:
        """Emit the tiles of a task in one panel. Only the panel's first ``stored`` columns are results."""
        p, blocks = self.product, self.blocks

        def line_of(row: Expr) -> Expr:
            return B.bind(batch * as_expr(p.rows) + row, "line") if compat.free_vars(row) else row

        def fetch(rows: int, line: Expr) -> None:
            self.out.fetch(rows, lambda i: line + i, start, stored)

        def store(sums: list[Buffer], line: Expr) -> None:
            self.out.store(sums, lambda i: line + i, start, stored, min(self.tiles.lanes, width))

        def whole(number: Expr, row: Expr, rows: int) -> None:
            line = line_of(row)
            fetch(rows, line)
            store(self._sums(number, batch, row, line, rows, start, width), line)

        if blocks is None:
            self._each_tile(first, count, whole)
            return
        totals = self.totals
        totals.clear()
        with times("serial", blocks.count, "block") as block:

            def part(number: Expr, row: Expr, rows: int) -> None:
                line = line_of(row)
                with last_of(blocks, block):
                    fetch(rows, line)
                totals.add(number, self._sums(number, batch, row, line, rows, start, width, (blocks, block)))

            self._each_tile(first, count, part)
        self._each_tile(
            first, count, lambda number, row, rows: store(totals.read(number, rows), line_of(row))
        )

    def _each_tile(self, first: Expr, count: Expr, visit: Callable[[Expr, Expr, int], None]) -> None:
        """Emit a loop over tiles of rows, from the first one on."""
        tile, rows = self.tile_rows, self.product.rows
        # Check that every task has whole tiles: its rows are a multiple of most tiles' rows, but not of those of
        # ``emit_dots``.
        whole = isinstance(rows, int) and (rows <= self.tiles.task_rows or self.tiles.task_rows % tile == 0)
        whole = whole and rows % tile == 0
        fewest = 0
        if isinstance(rows, int):
            fewest = min(rows, rows % self.tiles.task_rows or self.tiles.task_rows)
        each_tile(
            count,
            tile,
            whole,
            lambda number, at, size: visit(number, self._number(first + at, "row"), size),
            fewest,
        )

    def _sums(
        self,
        number: Expr,
        batch: Expr,
        row: Expr,
        line: Expr,
        rows: int,
        start: Expr,
        width: int,
        block: tuple[ReductionBlocks, Expr] | None = None,
    ) -> list[Buffer]:
        """Return ``rows`` x ``width`` sums, over the whole reduction or a block of it."""
        p, lanes = self.product, self.tiles.lanes
        if self.dots:
            along = None
            if isinstance(dots := self.instruction, DotInstruction):
                pieces = self._pieces
                along = dots, lambda i, k, c: pieces(dots, row, line, i, k, start, c)
            return emit_dots(
                rows,
                width,
                lanes,
                p.reduction,
                lambda i, k: self._left(batch, row, line, i, k),
                lambda k, c: self._right(batch, k, start, c, width),
                self.tiles.choices,
                p.summed,
                along,
                self._share(number, rows, start, width) if along else None,
            )
        ahead = self._ahead(number, rows, start, width, block)
        if isinstance(instruction := self.instruction, DotInstruction):
            term = instruction, lambda i, k, c: self._groups(instruction, row, line, i, k[0], start, c, width)
            return emit_sums(
                rows,
                width,
                lanes,
                [self.reduction],
                term,
                self.tiles.choices,
                p.summed,
                block=block,
                ahead=ahead,
            )
        return emit_sums(
            rows,
            width,
            lanes,
            [p.reduction],
            lambda i, k, c: self._left(batch, row, line, i, k[0]) * self._right(batch, k[0], start, c, width),
            self.tiles.choices,
            p.summed,
            block=block,
            ahead=ahead,
        )

    def _share(self, number: Expr, rows: int, start: Expr, width: int) -> Share:
        """Return the prefetches of the columns behind a panel whose columns are contiguous, for one tile."""
        p = self.product
        tiles, choices, between = -(-self._most_rows() // self.tile_rows), self.tiles.choices, 1
        while between < choices.fetch_steps and between * choices.group_dot_columns < tiles:
            between *= 2  # a line between two prefetches, or more

        def share(loop: Expr, loops: int, steps: Extent) -> Ahead | None:
            if rows < self.tile_rows or not isinstance(p.reduction, int):
                return None
            begin = (self.matrix * as_expr(p.columns) + start) * B.i64(p.reduction)
            group = self.tiles.lanes * self.tiles.group
            unit, units = number * B.i64(loops) + loop, tiles * loops
            return Ahead.of(self.right, begin, steps, width * group, unit, units, choices, between)

        return share

    def _ahead(
        self, number: Expr, rows: int, start: Expr, width: int, block: tuple[ReductionBlocks, Expr] | None
    ) -> Ahead | None:
        """Return the prefetch of packed weights behind the panel's block, for one tile."""
        if self.packed is None or rows < self.tile_rows:
            return None
        assert isinstance(self.reduction, int)
        group = self.tiles.group
        step = self.reduction if block is None else block[0].step
        begin = start * B.i64(self.reduction * group)
        if block is not None:
            begin = begin + block[1] * B.i64(step * width * group)
        tiles = -(-self._most_rows() // self.tile_rows)
        return Ahead.of(self.packed, begin, step, width * group, number, tiles, self.tiles.choices)

    def _left(self, batch: Expr, row: Expr, line: Expr, i: int, k: Expr) -> Expr:
        p = self.product
        reduction, rows = as_expr(p.reduction), as_expr(p.rows)
        if self.block is not None:
            return B.fetch(self.block, (row - self.first + B.i64(i)) * reduction + k)
        if p.left_transposed:
            return self._wide(
                B.fetch(self.left, (self._left_batch(batch) * reduction + k) * rows + row + B.i64(i))
            )
        first = row if p.left_shared else line
        return self._wide(B.fetch(self.left, (first + B.i64(i)) * reduction + k))

    def _groups(
        self,
        instruction: DotInstruction,
        row: Expr,
        line: Expr,
        i: int,
        step: Expr,
        start: Expr,
        column: Expr,
        width: int,
    ) -> tuple[Expr, Expr]:
        """Return a group of a row's elements, and those of a vector of columns."""
        assert isinstance(self.reduction, int)
        group, p = instruction.group, self.product
        rows, first, each = self.left, row if p.left_shared else line, as_expr(p.reduction)
        if self.block is not None:
            rows, first, each = self.block, row - self.first, B.i64(self.reduction * group)
        left = vector((first + B.i64(i)) * each + step * B.i64(group), group)
        if self.panel is not None:
            right = step * B.i64(width * group) + column * B.i64(group)
            return compat.load(rows, [left]), compat.load(
                self.panel, [vector(right, instruction.lanes * group)]
            )
        assert self.packed is not None
        at = [tir.floordiv(start, B.i64(width)), step, instruction.position_of(column)]
        return compat.load(rows, [left]), compat.load(self.packed, at)

    def _pieces(
        self,
        instruction: DotInstruction,
        row: Expr,
        line: Expr,
        i: int,
        first: Expr,
        start: Expr,
        column: Expr,
    ) -> tuple[Expr, Expr]:
        """Return pieces of a row and of a column of the right side, from an element of the reduction on."""
        p, size = self.product, instruction.lanes * instruction.group
        reduction, columns = as_expr(p.reduction), as_expr(p.columns)
        rows = self.left
        left = ((row if p.left_shared else line) + B.i64(i)) * reduction + first
        if self.block is not None:
            rows, left = self.block, (row - self.first + B.i64(i)) * B.i64(self.rows_copy.stride) + first
        right = (self.matrix * columns + start + column) * reduction + first
        return compat.load(rows, [vector(left, size)]), compat.load(self.right, [vector(right, size)])

    def _wide(self, value: Expr) -> Expr:
        return widened(value, self.product.summed)

    def _left_batch(self, batch: Expr) -> Expr:
        """Return the index of the left side's matrix."""
        return B.i64(0) if self.product.left_shared else batch

    def _matrix(self, batch: Expr) -> Expr:
        """Return the index of the right side's matrix, bound to a variable if it is read from memory."""
        p = self.product
        position = B.i64(0) if p.shared else batch
        if p.chosen is None:
            return position
        return B.bind(tir.Cast("int64", B.fetch(B.flat_view(p.chosen.buffer), position)), "matrix")

    def _right(self, batch: Expr, k: Expr, start: Expr, column: Expr, width: int) -> Expr:
        p = self.product
        if self.packed is not None:
            return self._wide(compat.load(self.packed, [tir.floordiv(start, B.i64(width)), k, column]))
        if self.copied is not None:
            return B.fetch(self.copied, k * B.i64(width) + column)
        reduction, columns, matrix = as_expr(p.reduction), as_expr(p.columns), self.matrix
        if p.transposed:
            return self._wide(B.fetch(self.right, (matrix * columns + start + column) * reduction + k))
        return self._wide(B.fetch(self.right, (matrix * reduction + k) * columns + start + column))
