# SPDX-License-Identifier: Apache-2.0
"""A convolution on a CPU, channels innermost: the matrix product's micro-kernel over neighbouring output positions.

A tile covers some positions along the last spatial axis and some output channels. Its reduction dimension
consists of the window's elements and the input channels. No matrix of all windows is ever written (direct
convolution, by Zhang, Franchetti and Low, 2018). Weights lie in panels of channels, packed at compile time. With an
instruction that multiplies groups of channels, one step of the reduction is such a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ... import compat
from ...codegen import builder as B
from ...codegen.cpu.base import extent_min
from ...codegen.cpu.columns import count_of
from ...codegen.cpu.tasks import times
from ...compat import Buffer, Expr, T, tir
from ...graph.extent import Extent, as_expr, ceildiv, flatten, is_static, product, unflatten
from ..convolution import Convolution
from .data_block import DataBlock
from .dot_instruction import DotInstruction
from .factors import widened
from .micro_kernel.loops import each_width
from .micro_kernel.prefetch import Ahead
from .micro_kernel.reduction_blocks import ReductionBlocks, blocks_of, last_of
from .micro_kernel.sums import Groups, Guard, Term, emit_sums
from .micro_kernel.tile import Totals
from .residues import Residue, Taps, Window
from .tiles import Tiles
from .write_back import Rows, WriteBack

Positions = Callable[[int], tuple[Expr, Expr]]
"""Maps a row of a tile to its line, and its position on the line."""

Visit = Callable[[Expr, Positions, Rows], None]
"""Processes a tile, from its number in the task, its positions, and its rows of the result."""


class ConvolutionTasks:
    """Tasks that each compute some lines of output positions along the last spatial axis.

    Args:
        conv: the convolution.
        tiles: the sizes of tiles. ``task_rows`` counts lines of positions.
        packed: the packed weight.
        out: stores the tiles.
    """

    def __init__(self, conv: Convolution, tiles: Tiles, packed: Buffer, out: WriteBack):
        self.conv, self.tiles, self.packed, self.out = conv, tiles, packed, out

    def emit(self) -> None:
        """Emit a parallel loop over the tasks into the kernel under construction."""
        conv, tiles = self.conv, self.tiles
        *outer, lines, last = conv.windows
        positions = [
            conv.batch,
            *(w.outputs for w in outer),
            -(-lines.outputs // tiles.task_rows),
            -(-last.outputs // tiles.task_positions),
        ]
        column_tasks = -(-self.panels() // tiles.task_panels)
        divided = [*positions, column_tasks] if tiles.rows_outside else [column_tasks, *positions]
        kind = "parallel" if tiles.parallel else "serial"
        with B.loop(kind, as_expr(product(divided)), "task") as task:
            self.out.begin(tiles.rows, self.width())
            numbers = unflatten(task, divided)
            column_task = numbers.pop() if tiles.rows_outside else numbers.pop(0)
            *position, block, piece = numbers
            self.first_line = block * B.i64(tiles.task_rows)
            self.first = piece * B.i64(tiles.task_positions)
            if last.outputs % tiles.task_positions:  # the last piece of a line overlaps the one before
                self.first = tir.min(self.first, B.i64(last.outputs - tiles.task_positions))
            self.outputs = [1] * len(outer) + [tiles.task_rows, tiles.task_positions]
            self.image, self.positions = position[0], [*position[1:], self.first_line, self.first]
            self.begin()
            first_panel = column_task * B.i64(tiles.task_panels)
            with times("serial", count_of(self.panels(), tiles.task_panels, first_panel), "panel") as panel:
                for number in range(len(conv.residues.each)):
                    with self.residue(number):
                        self.panel(first_panel + panel)

    @contextmanager
    def residue(self, number: int) -> Iterator[None]:
        """Emit code for one residue class. While this is active, emitted code computes that class of each image."""
        residues, windows = self.conv.residues, self.conv.windows
        self.number_of_residue = number
        reductions = [product(self.reduction_of(residue)) for residue in residues.each]
        self.taps, self.reduction = residues.each[number], self.reduction_of(residues.each[number])
        self.reduction_before, self.all_depth = sum(reductions[:number]), sum(reductions)
        *outer, lines, positions = self.taps
        self.lines_of_task = _within(lines, windows[-2], self.tiles.task_rows, self.first_line)
        self.positions_of_task = _within(positions, windows[-1], self.tiles.task_positions, self.first)
        fewest = min(self.tiles.task_positions, positions.outputs)
        self.rows = self.tiles.rows if self.tiles.across_lines else min(self.tiles.rows, fewest)
        at = [
            B.i64(taps.first) + position * B.i64(taps.step)
            for taps, position in zip(self.taps, self.positions)
        ]
        extents = [self.conv.batch, *residues.lengths[:-1]]
        self.start = flatten([self.image, *at[:-1]], extents)
        missing = [
            tir.LT(position, B.i64(taps.outputs))
            for taps, window, position in zip(outer, windows, self.positions)
            if taps.outputs < window.outputs
        ]
        with ExitStack() as stack:
            if missing:
                stack.enter_context(T.If(missing[0] if len(missing) == 1 else tir.all(*missing)))
                stack.enter_context(T.Then())
            yield

    def lines(self, visit: Visit) -> None:
        """Emit a loop over the tiles along the lines of a task."""
        if self.tiles.across_lines:
            self._across_lines(visit)
            return
        count, tile, last = self.positions_of_task, self.rows, self.taps[-1]
        of_line = ceildiv(count, tile)
        with times("serial", self.lines_of_task, "line") as line:
            with times("serial", of_line, "tile") as at:
                position = at * B.i64(tile)
                if not isinstance(count, int) or count % tile:  # the last tile overlaps the one before
                    position = tir.min(position, as_expr(count) - B.i64(tile))
                row = self._row(line, position)
                row = B.bind(row, "row") if compat.free_vars(row) else row
                visit(
                    line * as_expr(of_line) + at,
                    lambda i: (line, position + B.i64(i)),
                    lambda i: row + i * B.i64(last.step),
                )

    def _row(self, line: Expr, position: Expr) -> Expr:
        """Return the result's row of a position on a line of the task."""
        *_, lines, positions = self.taps
        row = (self.start + line * B.i64(lines.step)) * B.i64(self.conv.residues.lengths[-1])
        return row + (self.first + position) * B.i64(positions.step) + B.i64(positions.first)

    def _across_lines(self, visit: Visit) -> None:
        """Emit a loop over tiles that continue from line to line. The task has whole lines, in all residue classes."""
        outputs, tile, count = self.conv.windows[-1].outputs, self.tiles.rows, self.lines_of_task
        total = count * outputs if isinstance(count, int) else count * B.i64(outputs)
        with times("serial", ceildiv(total, tile), "tile") as at:
            first = tir.min(at * B.i64(tile), as_expr(total) - B.i64(tile))

            def position_of(i: Expr) -> tuple[Expr, Expr]:
                return tir.floordiv(first + i, B.i64(outputs)), tir.floormod(first + i, B.i64(outputs))

            coordinates = []
            for i in range(tile):
                line, rest = position_of(B.i64(i))
                free = compat.free_vars(line) or compat.free_vars(rest)
                coordinates.append(
                    (B.bind(line, f"line{i}"), B.bind(rest, f"place{i}")) if free else (line, rest)
                )
            if self.conv.divided is not None:  # neither positions nor lines need be adjacent in the result
                visit(at, lambda i: coordinates[i], lambda i: self._row(*position_of(i)))
                return
            row = self.start * B.i64(outputs) + first
            row = B.bind(row, "row") if compat.free_vars(row) else row
            visit(at, lambda i: coordinates[i], lambda i: row + i)

    def offsets(self, line: Expr, position: Expr, window: list[Expr]) -> list[Expr]:
        """Return the coordinates of a window's element in the data block."""
        *outer, lines, positions = self.conv.windows
        starts = [*(B.i64(0) for _ in outer), line * B.i64(lines.stride), position * B.i64(positions.stride)]
        return [
            start + B.i64(taps.offset) + element * B.i64(taps.dilation)
            for start, taps, element in zip(starts, self.taps, window)
        ]

    def begin(self) -> None:
        """Emit the code before a task's panels."""
        raise NotImplementedError

    def panels(self) -> int:
        """Return the number of panels of columns, over all groups."""
        raise NotImplementedError

    def reduction_of(self, taps: Residue) -> list[int]:
        """Return the extents of the reduction loops in a residue class."""
        raise NotImplementedError

    def width(self) -> int:
        """Return the columns of a tile."""
        raise NotImplementedError

    def panel(self, panel: Expr) -> None:
        """Emit a task's lines of the current residue class, in one panel of columns."""
        raise NotImplementedError


def _within(taps: Taps, window: Window, each: int, first: Expr) -> Extent:
    """Return how many positions of a residue class along an axis lie in a group of at most ``each`` of all
    positions.
    """
    if taps.outputs == window.outputs:
        return count_of(taps.outputs, each, first)
    return taps.outputs if window.outputs <= each else extent_min(each, B.i64(taps.outputs) - first)


def _share_inside(windows: Sequence[Window], begins: Sequence[int], ends: Sequence[int]) -> float:
    """Return the share of taps that read the image, of all taps at all positions."""
    share = 1.0
    for window, begin, end in zip(windows, begins, ends):
        at = [
            o * window.stride + k * window.dilation
            for o in range(window.outputs)
            for k in range(window.kernel)
        ]
        share *= sum(begin <= position < end for position in at) / len(at)
    return share


class MixedTasks(ConvolutionTasks):
    """The tasks of a convolution that mixes channels, within groups or all of them."""

    def __init__(self, conv: Convolution, tiles: Tiles, packed: Buffer, out: WriteBack):
        super().__init__(conv, tiles, packed, out)
        self.of_group = -(-conv.outputs // self.width())
        self.steps = -(-conv.inputs // tiles.group)  # groups of channels per instruction

    def begin(self) -> None:
        self.data = DataBlock(self.conv, self.outputs, self.tiles, instruction=self.tiles.groups)
        self.data.fill(self.image, self.positions)
        if any(
            blocks_of(self.reduction_of(residue), self.tiles.choices) is not None
            for residue in self.conv.residues.each
        ):
            count = self.tiles.task_rows * -(-self.tiles.task_positions // self.tiles.rows)
            self.totals = Totals(count, self.tiles.rows, self.width(), self.tiles.lanes, self.conv.summed)

    @contextmanager
    def residue(self, number: int) -> Iterator[None]:
        with super().residue(number):
            self.blocks = blocks_of(self.reduction, self.tiles.choices)
            yield

    def reduction_of(self, taps: Residue) -> list[int]:
        kernel = [t.kernel for t in taps]
        if self._is_joined(taps):
            return [*kernel[:-1], kernel[-1] * self.steps]
        return [*kernel, self.steps]

    def _is_joined(self, taps: Residue) -> bool:
        """Return whether the window's last axis and the channels are adjacent in the data."""
        return self.conv.groups == 1 and taps[-1].dilation == 1

    def width(self) -> int:
        return self.tiles.columns

    def panels(self) -> int:
        return self.conv.groups * -(-self.conv.outputs // self.width())

    def panel(self, panel: Expr) -> None:
        width, outputs = self.width(), self.conv.outputs
        self.number = panel
        self.group = tir.floordiv(panel, B.i64(self.of_group))
        within = tir.floormod(panel, B.i64(self.of_group))
        column = self.group * B.i64(outputs) + within * B.i64(width)
        each_width(within, outputs, width, lambda stored: self.tiles_of(column, stored))

    def tiles_of(self, column: Expr, stored: int) -> None:
        """Emit the tiles of a task in one panel of columns. Only the first ``stored`` columns are results."""
        blocks, lanes = self.blocks, min(self.tiles.lanes, self.width())

        def store(sums: list[Buffer], of_result: Rows) -> None:
            self.out.store(sums, of_result, column, stored, lanes)

        def fetch(of_result: Rows) -> None:
            self.out.fetch(self.rows, of_result, column, stored)

        def whole(number: Expr, positions: Positions, of_result: Rows) -> None:
            fetch(of_result)
            store(self.sums(number, positions), of_result)

        if blocks is None:
            self.lines(whole)
            return
        totals, rows = self.totals, self.rows
        totals.clear()
        with times("serial", blocks.count, "block") as block:

            def part(number: Expr, positions: Positions, of_result: Rows) -> None:
                with last_of(blocks, block):
                    fetch(of_result)
                totals.add(number, self.sums(number, positions, (blocks, block)))

            self.lines(part)
        self.lines(lambda number, positions, at: store(totals.read(number, rows), at))

    def sums(
        self, number: Expr, positions: Positions, block: tuple[ReductionBlocks, Expr] | None = None
    ) -> list[Buffer]:
        """Return the sums of a tile, over the whole reduction or a block of it."""
        conv, tiles, instruction = self.conv, self.tiles, self.tiles.groups

        def data(i: int, k: list[Expr]) -> Expr:
            window, step = ([*k[:-1], B.i64(0)], k[-1]) if self._is_joined(self.taps) else (k[:-1], k[-1])
            channel = self.group * B.i64(conv.inputs) + step * B.i64(tiles.group)
            return self.data.at(self.offsets(*positions(i), window), channel)

        def weights(k: list[Expr], at: Expr) -> Expr:
            return compat.load(
                self.packed, [self.number, B.i64(self.reduction_before) + flatten(k, self.reduction), at]
            )

        def groups(i: int, k: list[Expr], c: Expr) -> tuple[Expr, Expr]:
            assert instruction is not None
            return data(i, k), weights(k, instruction.position_of(c))

        term: Term | tuple[DotInstruction, Groups] = (
            (lambda i, k, c: data(i, k) * widened(weights(k, c), conv.summed))
            if instruction is None
            else (instruction, groups)
        )
        ahead = self.ahead(number, block)
        return emit_sums(
            self.rows,
            self.width(),
            tiles.lanes,
            self.reduction,
            term,
            tiles.choices,
            conv.summed,
            block=block,
            ahead=ahead,
            guard=self._guard(positions),
        )

    def _guard(self, positions: Positions) -> Guard | None:
        """Return the condition that a tap reads the image at some position of a tile, if taps often do not.

        Taps of windows that are dilated far read the border for many positions.
        """
        data, windows = self.conv.data, self.conv.windows
        if data.fill is None or float(data.fill.value) != 0 or not is_static(data.inner[1:-1]):
            return None
        if self.conv.divided is not None or self._is_joined(self.taps):
            return None
        begins = data.before[1:-1]
        ends = [begin + int(extent) for begin, extent in zip(begins, data.inner[1:-1])]
        if _share_inside(windows, begins, ends) > self.tiles.choices.taps_inside:
            return None
        (first_line, first), (last_line, last) = positions(0), positions(self.rows - 1)
        lines = len(windows) - 2
        task = [position * B.i64(window.stride) for position, window in zip(self.positions, windows)]

        def inside(window: list[Expr]) -> Expr:
            low, high = self.offsets(first_line, first, window), self.offsets(last_line, last, window)
            conditions = [
                tir.all(start + at_most >= B.i64(begin), start + at_least < B.i64(end))
                for start, at_least, at_most, begin, end in zip(task, low, high, begins, ends)
            ]
            if self.tiles.across_lines:  # the positions of several lines are not in order
                conditions[lines + 1] = tir.any(first_line < last_line, conditions[lines + 1])
            return tir.all(*conditions)

        return inside

    def ahead(self, number: Expr, block: tuple[ReductionBlocks, Expr] | None) -> Ahead | None:
        """Return the prefetch of weights behind the panel's block, for one tile."""
        if self.conv.windows[-1].stride * self.conv.groups * self.steps < self.tiles.choices.fetch_steps:
            # Neighbouring windows share elements within a group of steps. LLVM keeps those in registers, of which 6
            # x 2 sums leave none free. The few weights of so few channels are in the cache anyway.
            return None
        width, reduction = self.width() * self.tiles.group, product(self.reduction)
        assert isinstance(reduction, int)
        begin = (self.number * B.i64(self.all_depth) + B.i64(self.reduction_before)) * B.i64(width)
        if block is not None:
            blocks, at = block
            *before, part = unflatten(at, blocks.divided)
            inner = [*blocks.reduction[blocks.level + 1 :]]
            reduction = blocks.step * product(inner)
            first = flatten([*before, part * B.i64(blocks.step)], blocks.reduction[: blocks.level + 1])
            begin = begin + first * B.i64(product(inner) * width)
        tiles = self.tiles
        count = (
            tiles.task_rows * tiles.task_positions // tiles.rows
            if tiles.across_lines
            else (tiles.task_rows * -(-tiles.task_positions // self.rows))
        )
        return Ahead.of(self.packed, begin, reduction, width, number, count, tiles.choices)
