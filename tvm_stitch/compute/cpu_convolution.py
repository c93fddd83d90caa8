# SPDX-License-Identifier: Apache-2.0
"""A convolution on a CPU, channels innermost: the matrix product's micro-kernel over neighbouring places of a window.

A tile is some places along the last spatial axis times some channels of the output; its depth are the places in the
window times the channels that are read. So no matrix of all windows is ever written (direct convolution; Zhang,
Franchetti and Low, 2018). Weights lie in panels of channels, packed at compile time.
"""

from __future__ import annotations

from .. import compat
from ..codegen import builder as B
from ..codegen.cpu_base import times
from ..codegen.cpu_columns import count_of
from ..compat import Buffer, Expr, T, tir
from ..graph.extent import as_expr, flatten, product, unflatten
from .convolution import Convolution
from .data_block import DataBlock
from .micro_kernel import emit_sums, wide
from .tiles import Tiles
from .write_back import WriteBack


def emit_convolution(conv: Convolution, tiles: Tiles, packed: Buffer, out: WriteBack) -> None:
    """Emit the loops of a convolution into the kernel that is being built.

    Args:
        conv: the convolution.
        tiles: the sizes of tiles; ``task_rows`` are lines of places.
        packed: its weight.
        out: where tiles go.
    """
    _Emitter(conv, tiles, packed, out).emit()


class ConvolutionTasks:
    """Tasks of some lines of places along the last spatial axis."""

    def __init__(self, conv: Convolution, tiles: Tiles, out: WriteBack):
        self.conv, self.tiles, self.out = conv, tiles, out

    def emit(self) -> None:
        """Emit a parallel loop over the tasks."""
        conv, tiles = self.conv, self.tiles
        *outer, lines, last = conv.windows
        # Innermost the parts of an image's panels, which share what they read.
        divided = [
            conv.batch,
            *(w.outputs for w in outer),
            -(-lines.outputs // tiles.task_rows),
            -(-last.outputs // tiles.task_places),
            -(-self.panels() // tiles.task_panels),
        ]
        kind = "parallel" if tiles.parallel else "serial"
        with B.loop(kind, as_expr(product(divided)), "task") as task:
            self.out.begin(tiles.rows, self.width())
            *place, block, piece, part = unflatten(task, divided)
            first = block * B.i64(tiles.task_rows)
            self.first = piece * B.i64(tiles.task_places)
            if last.outputs % tiles.task_places:  # the last piece of a line overlaps the one before
                self.first = tir.min(self.first, B.i64(last.outputs - tiles.task_places))
            self.outputs = [1] * len(outer) + [tiles.task_rows, tiles.task_places]
            self.image, self.places = place[0], [*place[1:], first, self.first]
            self.begin()
            count = count_of(lines.outputs, tiles.task_rows, first)
            start = flatten([*place, first], divided[: len(place)] + [lines.outputs])
            first_panel = part * B.i64(tiles.task_panels)
            with times("serial", count_of(self.panels(), tiles.task_panels, first_panel), "panel") as panel:
                self.panel(first_panel + panel, count, start)

    def lines(self, count: int | Expr, start: Expr, column: Expr, stored: int) -> None:
        """Tiles along the lines of a task."""
        outputs, places, tile = self.conv.windows[-1].outputs, self.tiles.task_places, self.tiles.rows
        with times("serial", count, "line") as line:
            with times("serial", -(-places // tile), "tile") as at:
                place = at * B.i64(tile)
                if places % tile:  # the last tile overlaps the one before
                    place = tir.min(place, B.i64(places - tile))
                row = (start + line) * B.i64(outputs) + self.first + place
                self.tile(line, place, B.bind(row, "row") if compat.free_vars(row) else row, column, stored)

    def offsets(self, line: Expr, place: Expr, window: list[Expr]) -> list[Expr]:
        """Where a window's element is in the data block."""
        *outer, lines, places = self.conv.windows
        found = [r * B.i64(w.dilation) for w, r in zip(outer, window)]
        return [
            *found,
            line * B.i64(lines.stride) + window[-2] * B.i64(lines.dilation),
            place * B.i64(places.stride) + window[-1] * B.i64(places.dilation),
        ]

    def begin(self) -> None:
        """Emit what comes before a task's panels."""
        raise NotImplementedError

    def panels(self) -> int:
        """Panels of columns, of all groups."""
        raise NotImplementedError

    def width(self) -> int:
        """Columns of a tile."""
        raise NotImplementedError

    def panel(self, panel: Expr, count: int | Expr, start: Expr) -> None:
        """Emit the lines of a task in one panel of columns."""
        raise NotImplementedError

    def tile(self, line: Expr, place: Expr, row: Expr, column: Expr, stored: int) -> None:
        """Emit a tile of places."""
        raise NotImplementedError


class _Emitter(ConvolutionTasks):
    def __init__(self, conv: Convolution, tiles: Tiles, packed: Buffer, out: WriteBack):
        super().__init__(conv, tiles, out)
        self.packed = packed
        self.of_group = -(-conv.outputs // self.width())

    def begin(self) -> None:
        self.data = DataBlock(self.conv, self.outputs)
        self.data.fill(self.image, self.places)

    def width(self) -> int:
        return self.tiles.columns

    def panels(self) -> int:
        return self.conv.groups * -(-self.conv.outputs // self.width())

    def panel(self, panel: Expr, count: int | Expr, start: Expr) -> None:
        width, outputs = self.width(), self.conv.outputs
        self.number = panel
        self.group = tir.floordiv(panel, B.i64(self.of_group))
        within = tir.floormod(panel, B.i64(self.of_group))
        column = self.group * B.i64(outputs) + within * B.i64(width)
        tail = outputs % width
        if tail and outputs > width:
            with T.If(tir.EQ(within, B.i64(outputs // width))):
                with T.Then():
                    self.lines(count, start, column, tail)
                with T.Else():
                    self.lines(count, start, column, width)
        else:
            self.lines(count, start, column, tail or width)

    def tile(self, line: Expr, place: Expr, row: Expr, column: Expr, stored: int) -> None:
        conv, tiles = self.conv, self.tiles
        kernel = [w.kernel for w in conv.windows]
        joined = (
            conv.groups == 1 and conv.windows[-1].dilation == 1
        )  # the last axis and the channels are neighbours
        depth = [*kernel[:-1], kernel[-1] * conv.inputs] if joined else [*kernel, conv.inputs]

        def term(i: int, k: list[Expr], c: Expr) -> Expr:
            window, channel = ([*k[:-1], B.i64(0)], k[-1]) if joined else (k[:-1], k[-1])
            offsets = self.offsets(line, place + B.i64(i), window)
            data = self.data.at(offsets, self.group * B.i64(conv.inputs) + channel)
            return data * wide(compat.load(self.packed, [self.number, flatten(k, depth), c]))

        sums = emit_sums(tiles.rows, self.width(), tiles.lanes, depth, term)
        self.out.store(sums, row, column, stored, min(tiles.lanes, self.width()))
