# SPDX-License-Identifier: Apache-2.0
"""A kernel that packs a convolution's weight in each call, for weights that are no constants.

A model that trains, or that gets its parameters as arguments, has other weights in each call. Packing reads and writes
each element once. The convolution reads each element once for every few positions of the images, so its reads
outnumber those of the packing.

Mostly the elements of an output channel are contiguous. Blocks of them are transposed in registers for all channels of
a panel, and stored row by row. Other weights are copied element by element.
"""

from __future__ import annotations

import math

from ... import compat
from ...codegen import builder as B
from ...codegen.cpu.tasks import times
from ...codegen.cpu.transpose import MatrixRows, side_of, transpose
from ...codegen.emit import sound_for_cpu
from ...compat import Buffer, Expr, PrimFunc, tir
from ...cost.choices import Choices
from ...graph.extent import flatten, unflatten
from ...support.failures import Refusal
from ..convolution import Convolution
from .emit import compute_func
from .micro_kernel.loops import each_width
from .packing import packed_shape
from .tiles import Tiles


def emit_packing(conv: Convolution, tiles: Tiles, choices: Choices) -> PrimFunc:
    """Return the scheduled PrimFunc that packs the weight of a convolution. Its parameters are the weight, the panels.

    Args:
        conv: the convolution. Its weight has static extents.
        tiles: the sizes of its tiles, without an instruction that multiplies groups.
        choices: constants of the device.

    Raises:
        Refusal: if the data is dilated. The weight is then divided into residue classes.
    """
    if conv.divided is not None:
        raise Refusal("a weight that is no constant is not divided into residue classes")
    source = tir.decl_buffer(list(conv.weight.buffer.shape), conv.weight.dtype, "weight")
    to = tir.decl_buffer(packed_shape(conv, tiles.columns), conv.weight.dtype, "packed")
    elements = math.prod(packed_shape(conv, tiles.columns))
    kind = "parallel" if elements * choices.packing_ns > choices.parallel_ns else "serial"
    with B.kernel() as body:
        emitter = _Packing(conv, tiles, B.flat_view(source), to, choices.packed_block)
        if conv.is_depthwise:
            emitter.depthwise(kind)
        elif conv.weight_order[0] == 0:
            emitter.transposed(kind)
        else:
            emitter.gathered(kind)
    return sound_for_cpu(compute_func([source, to], body[0]))


class _Packing:
    def __init__(self, conv: Convolution, tiles: Tiles, source: Buffer, to: Buffer, block: int):
        self.conv, self.source, self.to, self.block = conv, source, to, block
        self.lanes, self.width = tiles.lanes, tiles.columns
        self.shape = [int(extent) for extent in conv.weight.shape]
        self.of_group = -(-conv.outputs // self.width)
        self.panels = conv.groups * self.of_group

    def transposed(self, kind: str) -> None:
        """Pack a weight whose first axis has the output channels."""
        length = math.prod(self.shape[1:])
        block = min(self.block, length)
        blocks = -(-length // block)
        with B.loop(kind, self.panels * blocks, "task") as task:
            panel, number = unflatten(task, [self.panels, blocks])
            first = number * B.i64(block)
            if length % block:  # the last block overlaps the one before
                first = tir.min(first, B.i64(length - block))
            lines = B.stack([block * self.width], self.conv.weight.dtype, "lines")
            channel, within = self._channel(panel)

            def transpose_block(stored: int) -> None:
                if stored < self.width:
                    with times("serial", block, "line") as line:
                        self._row(line, lines, None)
                side = side_of(self.lanes, stored, block) if self.conv.weight.dtype == "float32" else 1
                transpose(
                    MatrixRows(self.source, channel * B.i64(length) + first, B.i64(length)),
                    MatrixRows(lines, B.i64(0), B.i64(self.width)),
                    stored,
                    block,
                    side,
                )

            each_width(within, self.conv.outputs, self.width, transpose_block)
            with times("serial", block, "line") as line:
                self._row(line, lines, [panel, self._step(first + line)])

    def _row(self, line: Expr, lines: Buffer, to: list[Expr] | None) -> None:
        """Store a line of the block in the panels, or zeros in the block."""
        with B.loop("vectorized", self.width, "c") as c:
            if to is None:
                B.store(lines, compat.const(0, self.conv.weight.dtype), [line * B.i64(self.width) + c])
            else:
                B.store(self.to, B.fetch(lines, line * B.i64(self.width) + c), [*to, c])

    def _step(self, column: Expr) -> Expr:
        """Return the step of the reduction of an element of an output channel, from its position in the weight."""
        at = unflatten(column, self.shape[1:])
        axes = [axis for axis in self.conv.weight_order[1:] if axis >= 0]
        return flatten([at[axis - 1] for axis in axes], [self.shape[axis] for axis in axes])

    def _channel(self, panel: Expr) -> tuple[Expr, Expr]:
        """Return the first output channel of a panel, and the panel's number in its group."""
        group, within = unflatten(panel, [self.conv.groups, self.of_group])
        return group * B.i64(self.conv.outputs) + within * B.i64(self.width), within

    def gathered(self, kind: str) -> None:
        """Pack a weight whose first axis is another one."""
        with B.loop(kind, self.panels, "panel") as panel:
            channel, within = self._channel(panel)
            with times("serial", self.conv.reduction, "step") as step, times("serial", self.width, "c") as c:
                value = tir.if_then_else(
                    tir.LT(within * B.i64(self.width) + c, B.i64(self.conv.outputs)),
                    B.fetch(self.source, self._element(step, channel + c)),
                    compat.const(0, self.conv.weight.dtype),
                )
                B.store(self.to, value, [panel, step, c])

    def depthwise(self, kind: str) -> None:
        """Pack a weight of channels that do not mix: positions of the window, and channels."""
        with B.loop(kind, self.conv.reduction, "step") as step, times("serial", self.conv.columns, "c") as c:
            B.store(self.to, B.fetch(self.source, self._element(step, c)), [step, c])

    def _element(self, step: Expr, channel: Expr) -> Expr:
        """Return the position in the weight of a step of the reduction, and of an output channel."""
        of_channel, *axes = self.conv.weight_order
        axes = [axis for axis in axes if axis >= 0]
        of_axis = dict(zip(axes, unflatten(step, [self.shape[axis] for axis in axes])))
        of_axis[of_channel] = channel
        return flatten([of_axis.get(axis, B.i64(0)) for axis in range(len(self.shape))], self.shape)
