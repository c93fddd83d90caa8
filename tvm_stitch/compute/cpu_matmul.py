# SPDX-License-Identifier: Apache-2.0
"""The matrix product of a CPU: a micro-kernel whose sums stay in registers, over panels of columns.

For a panel of the right side (``columns`` neighbouring columns, all of the depth), which the second-level cache holds,
the rows of a task are visited in tiles. Panels of a weight lie behind each other, padded with zeros, as GotoBLAS packs
them (Goto and van de Geijn, 2008); the right side of other products is read as it lies. The depth is not divided: up to
some thousands a panel fits the cache. Tails of rows and columns are tiles that overlap those before them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import compat
from ..codegen import builder as B
from ..codegen.cpu import emit_plan
from ..codegen.cpu_base import times
from ..codegen.cpu_columns import count_of
from ..codegen.emit import sound_for_cpu
from ..compat import Buffer, Expr, T, tir
from ..graph.extent import as_expr, ceildiv
from ..plan.plan import StitchPlan
from ..scope.fusion import Pattern
from .contraction import Contraction
from .tiles import Tiles

COMPUTE_ATTR = "tvm_stitch.compute"
"""Marks kernels that hold a contraction."""


def emit_matmul(
    func: Any, product: Contraction, tiles: Tiles, packed: Buffer | None, epilogue: StitchPlan | None = None
) -> Any:
    """The scheduled PrimFunc that computes a product, and then what is computed of it.

    Args:
        func: the function that consists of both.
        product: float32, and ``columns`` a number where the right side is packed.
        tiles: the sizes of tiles.
        packed: the right side in panels (see :mod:`tvm_stitch.compute.packing`), which takes the place of its
            parameter; None where it is read as it lies.
        epilogue: the plan of the rest, of which the product's result is an input.
    """
    with B.kernel() as body:
        if epilogue is not None and not any(p.same_as(product.output.buffer) for p in func.params):
            shape = [as_expr(extent) for extent in product.output.shape]
            product.output.buffer = compat.allocate(shape, "float32", B.STACK, "product")
        _Emitter(product, tiles, packed).emit()
        if epilogue is not None:
            emit_plan(epilogue)
    params = [packed if packed is not None and p.same_as(product.right.buffer) else p for p in func.params]
    made = tir.PrimFunc(params, body[0], func.ret_type, func.attrs)
    return sound_for_cpu(
        made.with_attrs({"tirx.is_scheduled": True, "op_pattern": int(Pattern.OPAQUE), COMPUTE_ATTR: True})
    )


class _Emitter:
    def __init__(self, product: Contraction, tiles: Tiles, packed: Buffer | None):
        self.product, self.tiles, self.packed = product, tiles, packed

    def emit(self) -> None:
        p, tiles = self.product, self.tiles
        self.left, self.out = B.flat_view(p.left.buffer), B.flat_view(p.output.buffer)
        self.right = B.flat_view(p.right.buffer) if self.packed is None else self.packed
        width = self._width()
        all_panels = ceildiv(p.columns, width)
        row_tasks = as_expr(ceildiv(p.rows, tiles.task_rows))
        panel_tasks = as_expr(ceildiv(p.columns, width * tiles.task_panels))
        total = as_expr(p.batch) * row_tasks * panel_tasks
        with B.loop("parallel" if tiles.parallel else "serial", total, "task") as task:
            rest, row_task = tir.floordiv(task, row_tasks), tir.floormod(task, row_tasks)
            batch, panel_task = tir.floordiv(rest, panel_tasks), tir.floormod(rest, panel_tasks)
            first = row_task * B.i64(tiles.task_rows)
            count = as_expr(count_of(p.rows, tiles.task_rows, first))
            first_panel = panel_task * B.i64(tiles.task_panels)
            with times("serial", count_of(all_panels, tiles.task_panels, first_panel), "panel") as panel:
                self._panel(batch, first, count, first_panel + panel, width)

    def _width(self) -> int:
        """Columns of a panel: no more than there are, where tails overlap."""
        if self.packed is not None or not isinstance(self.product.columns, int):
            return self.tiles.columns
        width = self.tiles.columns
        while width > self.product.columns:
            width //= 2
        return width

    def _panel(self, batch: Expr, first: Expr, count: Expr, panel: Expr, width: int) -> None:
        """The rows of a task in one panel of columns."""
        columns = self.product.columns
        start = panel * B.i64(width)
        if self.packed is not None:
            assert isinstance(columns, int)
            tail = columns % width
            if tail and columns > width:
                with T.If(tir.EQ(panel, B.i64(columns // width))):
                    with T.Then():
                        self._rows(batch, first, count, start, width, tail)
                    with T.Else():
                        self._rows(batch, first, count, start, width, width)
            else:
                self._rows(batch, first, count, start, width, tail or width)
            return
        if isinstance(columns, int):
            if columns % width:
                start = tir.min(start, B.i64(columns - width))
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
        """Tiles of rows; of fewer than a tile has, single ones."""
        tile = self.tiles.rows
        rows = self.product.rows
        if isinstance(rows, int) and rows % tile == 0:
            with B.loop("serial", tir.floordiv(count, B.i64(tile)), "tile") as at:
                self._tile(batch, first + at * B.i64(tile), tile, start, width, stored)
            return
        with T.If(tir.GE(count, B.i64(tile))):
            with T.Then():
                with B.loop("serial", tir.floordiv(count + B.i64(tile - 1), B.i64(tile)), "tile") as at:
                    row = tir.min(at * B.i64(tile), count - B.i64(tile))
                    self._tile(batch, first + row, tile, start, width, stored)
            with T.Else():
                with B.loop("serial", count, "row") as at:
                    self._tile(batch, first + at, 1, start, width, stored)

    def _tile(self, batch: Expr, row: Expr, rows: int, start: Expr, width: int, stored: int) -> None:
        """``rows`` x ``width`` sums, of which the first ``stored`` columns are results."""
        p = self.product
        depth = as_expr(p.depth)
        lanes = min(self.tiles.lanes, width)
        line = B.bind(batch * as_expr(p.rows) + row, "line") if compat.free_vars(row) else row
        # A buffer for each row: TVM asks the runtime for memory where one has 1 KiB, and LLVM makes registers of none.
        sums = [B.stack([width], "float32", f"sums{i}") for i in range(rows)]

        def each(body: Callable[[int, Expr], None]) -> None:
            for i in range(rows):
                with B.loop("unroll", width // lanes, "j") as j, B.loop("vectorized", lanes, "v") as v:
                    body(i, j * B.i64(lanes) + v)

        each(lambda i, c: B.store(sums[i], compat.const(0.0, "float32"), [c]))
        with B.loop("serial", depth, "k") as k:

            def add(i: int, c: Expr) -> None:
                left = B.fetch(self.left, (line + B.i64(i)) * depth + k)
                product = left * self._right(batch, k, start, c, width)
                B.store(sums[i], compat.load(sums[i], [c]) + product, [c])

            each(add)
        whole = stored // lanes * lanes
        for i in range(rows):
            base = (line + B.i64(i)) * as_expr(p.columns) + start
            for done, some, step in ((0, whole, lanes), (whole, stored - whole, 1)):
                if some:
                    with B.loop("unroll", some // step, "j") as j, B.loop("vectorized", step, "v") as v:
                        column = B.i64(done) + j * B.i64(step) + v
                        B.store(self.out, compat.load(sums[i], [column]), [base + column])

    def _right(self, batch: Expr, k: Expr, start: Expr, column: Expr, width: int) -> Expr:
        p = self.product
        if self.packed is not None:
            return compat.load(self.packed, [tir.floordiv(start, B.i64(width)), k, column])
        depth, columns = as_expr(p.depth), as_expr(p.columns)
        if p.transposed:
            return B.fetch(self.right, (batch * columns + start + column) * depth + k)
        return B.fetch(self.right, (batch * depth + k) * columns + start + column)
