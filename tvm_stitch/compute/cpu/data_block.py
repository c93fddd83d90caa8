# SPDX-License-Identifier: Apache-2.0
"""The data that a task of a convolution reads: the tensor itself, or a copy of a block of it with its border.

The copy stays in the second-level cache, and takes some hundredths of a convolution's time. With it, borders need
no tensor, and data in another order of axes needs no transposition. Half types become float32 in the copy, and
bytes int32. For an instruction that multiplies groups of channels, they become as narrow as the instruction takes
them. The last group is then padded with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ... import compat
from ...codegen import builder as B
from ...codegen.cpu.tasks import times
from ...codegen.cpu.transpose import MatrixRows, side_of, transpose
from ...compat import Buffer, Expr, T, tir
from ...graph.extent import Extent, as_expr, product, unflatten
from ..convolution import Convolution, Window
from .dot_instruction import DotInstruction, vector
from .factors import Kept
from .padding import Padded
from .tiles import Tiles


class DataBlock:
    """The data of some output positions: ``extents`` elements along each spatial axis, and some channels.

    ``fill`` emits the copy, if one is needed. ``at`` then reads elements.
    """

    def __init__(
        self,
        conv: Convolution,
        outputs: Sequence[int],
        tiles: Tiles,
        channels: int | None = None,
        instruction: DotInstruction | None = None,
    ):
        """Prepare a block for ``outputs`` positions along each spatial axis.

        Args:
            conv: the convolution.
            outputs: positions along each spatial axis.
            tiles: the sizes of the kernel's tiles.
            channels: number of neighbouring channels. None means all.
            instruction: the instruction that multiplies groups of all channels, if any.
        """
        self.conv, self.data, self.lanes = conv, conv.data, tiles.lanes
        self.at_once = tiles.choices.copied_at_once
        self.extents = [w.span(count) for w, count in zip(conv.windows, outputs)]
        self.overruns = [_overruns(w, n, e) for w, n, e in zip(conv.windows, outputs, conv.data.shape[1:])]
        self.all_channels = int(self.data.shape[-1])
        self.kept = Kept.by(instruction, conv.summed)
        all_filled = self.kept.filled(self.all_channels)
        self.copies = (
            not self.data.is_plain
            or all_filled > self.all_channels
            or self.data.source.dtype != self.kept.reads
        )
        self.copied = self.all_channels if channels is None or not self.copies else channels
        self.channels = self.kept.filled(self.copied)
        if self.copies:
            size = product([*self.extents, self.channels])
            assert isinstance(size, int)
            self.buffer: Buffer = B.stack([size], self.kept.dtype, "data_block")
            self.strides = _strides(self.extents, self.channels)
        else:
            self.buffer = B.flat_view(self.data.source.buffer)
            self.strides = _strides([int(e) for e in self.data.shape[1:-1]], self.channels)

    def fill(self, image: Expr, first: Sequence[Expr], channel: Expr | None = None) -> None:
        """Emit the copy for windows from position ``first`` on, and for channels from ``channel`` on (default: 0)."""
        self.channel = B.i64(0) if channel is None else channel
        starts = [position * B.i64(w.stride) for position, w in zip(first, self.conv.windows)]
        self.base = B.i64(0)
        if not self.copies:
            size = B.i64(int(self.data.shape[1]) * self.strides[0])
            self.base = image * size + self.channel
            for start, stride in zip(starts, self.strides):
                self.base = self.base + start * B.i64(stride)
            return
        source = B.flat_view(self.data.source.buffer)
        *outer, last = self.extents
        self._copy(source, image, starts, outer, last)
        if self.channels > self.copied:
            with times("serial", product(self.extents), "place") as position:
                for c in range(self.copied, self.channels):
                    B.store(
                        self.buffer,
                        compat.const(0, self.kept.dtype),
                        [position * B.i64(self.channels) + B.i64(c)],
                    )

    def at(self, offsets: Sequence[Expr], channel: Expr) -> Expr:
        """Return an element, counted from the first window and channel. For an instruction, return the group that
        begins there.
        """
        index = self.base + channel
        for offset, stride in zip(offsets, self.strides):
            index = index + offset * B.i64(stride)
        if self.kept.group > 1:
            return compat.load(self.buffer, [vector(index, self.kept.group)])
        return B.fetch(self.buffer, index)

    def _copy(self, source: Buffer, image: Expr, starts: list[Expr], outer: list[int], last: int) -> None:
        """Emit the copy, line after line along the last spatial axis."""
        data = self.data
        with times("serial", product(outer), "line") as line:
            positions = [start + position for start, position in zip(starts, unflatten(line, outer))]
            to = line * B.i64(last * self.channels)
            inside = _all(
                [
                    _inside(data, axis + 1, position, self.overruns[axis])
                    for axis, position in enumerate(positions)
                ]
            )
            if inside is None:
                self._line(source, image, positions, starts[-1], to, last)
                return
            with T.If(inside):
                with T.Then():
                    self._line(source, image, positions, starts[-1], to, last)
                if data.fill is not None:
                    with T.Else():
                        self._fill(to, B.i64(last * self.channels))

    def _line(
        self, source: Buffer, image: Expr, positions: list[Expr], start: Expr, to: Expr, last: int
    ) -> None:
        """Emit one line of the block: its border on both sides, and the elements of the source in between."""
        data = self.data
        axis = len(data.shape) - 2
        before, inner = data.before[axis], int(data.inner[axis])
        left = tir.min(tir.max(B.i64(before) - start, B.i64(0)), B.i64(last))
        right = tir.max(tir.min(B.i64(before + inner) - start, B.i64(last)), left)
        left = B.bind(left, "left") if compat.free_vars(left) else left
        channels = B.i64(self.channels)
        if data.fill is not None:
            self._fill(to, left * channels)
            self._fill(to + right * channels, (B.i64(last) - right) * channels)
        strides = self._source_strides()
        base = image * strides[0]
        for at, position in enumerate(positions):
            base = base + (position - B.i64(data.before[at + 1])) * strides[at + 1]
        base = base + (start + left - B.i64(before)) * strides[axis]
        count = right - left
        to = to + left * channels
        if data.in_order and self.channels == self.all_channels:  # positions and channels are contiguous
            elements(
                count * channels,
                self.at_once,
                lambda at: B.store(self.buffer, self.kept.stored(B.fetch(source, base + at)), [to + at]),
            )
            return
        if (
            data.order[-1] == axis and data.source.dtype == self.kept.dtype
        ):  # positions are contiguous, as in NCHW
            transpose(
                MatrixRows(source, base + self.channel * strides[-1], strides[-1]),
                MatrixRows(self.buffer, to, channels),
                self.channels,
                count,
                side_of(self.lanes, self.channels, inner),
            )
            return
        kind = "vectorized" if data.in_order else "serial"  # adjacent in the source, or not
        with times("serial", count, "x") as x, B.loop(kind, self.copied, "c") as c:
            value = B.fetch(source, base + x * strides[axis] + (self.channel + c) * strides[-1])
            B.store(self.buffer, self.kept.stored(value), [to + x * channels + c])

    def _source_strides(self) -> list[Expr]:
        """Return the distance of neighbours in the source, for each axis of the data."""
        data = self.data
        strides: list[Expr] = [B.i64(0)] * len(data.shape)
        stride: Expr = B.i64(1)
        for axis in reversed(data.order):
            strides[axis] = stride
            stride = stride * as_expr(data.inner[axis])
        return strides

    def _fill(self, to: Expr, count: Expr) -> None:
        assert self.data.fill is not None
        fill = self.kept.stored(self.data.fill)
        elements(count, self.at_once, lambda at: B.store(self.buffer, fill, [to + at]))


def elements(count: Expr, at_once: int, body: Callable[[Expr], None]) -> None:
    """Call ``body`` for each of ``count`` positions: first with vectors of ``at_once``, then with single ones."""
    whole = tir.floordiv(count, B.i64(at_once))
    with times("serial", whole, "piece") as piece, B.loop("vectorized", at_once, "v") as v:
        body(piece * B.i64(at_once) + v)
    with times("serial", count - whole * B.i64(at_once), "rest") as rest:
        body(whole * B.i64(at_once) + rest)


def _strides(extents: Sequence[int], channels: int) -> list[int]:
    strides = [channels]
    for extent in reversed(extents[1:]):
        strides.append(strides[-1] * extent)
    return strides[::-1]


def _overruns(window: Window, count: int, extent: Extent) -> bool:
    """Return whether the last block of ``count`` output positions reaches beyond the data."""
    assert isinstance(extent, int)
    first = -(-window.outputs // count) * count - count
    return first * window.stride + window.span(count) > extent


def _inside(data: Padded, axis: int, position: Expr, overruns: bool) -> Expr | None:
    """Return the condition that a position of the data lies in the source, or None if all positions do."""
    before, inner, extent = data.before[axis], data.inner[axis], data.shape[axis]
    conditions = []
    assert isinstance(inner, int) and isinstance(extent, int)
    if before > 0:
        conditions.append(tir.GE(position, B.i64(before)))
    if overruns or before + inner < extent:
        conditions.append(tir.LT(position, B.i64(before + inner)))
    return _all(conditions)


def _all(conditions: Sequence[Expr | None]) -> Expr | None:
    present = [c for c in conditions if c is not None]
    return None if not present else present[0] if len(present) == 1 else tir.all(*present)
