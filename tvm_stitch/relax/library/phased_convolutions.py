# SPDX-License-Identifier: Apache-2.0
"""PhasedConvolutions: write transposed convolutions as a library's convolution, and a rearrangement.

If cuDNN is installed and the weight is a constant, the convolution of cuDNN has the phases as channels. The stitched
kernel behind it computes the rearrangement together with the following operators. That is one kernel more than TVM's
single one, which has practically no schedule.

``LibraryConvolutions`` gets the others: dilated ones, symbolic images, and windows much smaller than the stride. For
the last, most of a phase's window would be zeros. On an H100 all tried cases agree with float64: one to three axes,
groups, strides up to 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from ...cost.choices import Choices
from ...graph.dtype import MULTIPLIED
from ...graph.extent import is_static
from ...support.failures import Refusal
from ...support.module_pass import module_pass
from ..legalize.transposed_convolutions import CONVOLUTIONS, SPATIAL
from ..rewriting.calls import with_bound_calls
from ..rewriting.compute_pass import ChoosingPass
from ..rewriting.operators import has_operators
from ..rewriting.views import shape_of


@module_pass
class PhasedConvolutions(ChoosingPass):
    """Write transposed convolutions of constant weights and static images as convolutions with more channels.

    A phase consists of the results at positions of one remainder by the stride. It is a convolution of stride 1 over
    the data with every ``stride``-th element of the window. All phases become the channels of one convolution. A
    stitched kernel puts its results into their positions, and computes the following operators.

    For targets whose library has convolutions, because TVM has no schedule for transposed ones. Runs behind
    ``TransposedConvolutions``.

    Args:
        is_called: returns whether the library is installed. Only transposed convolutions ask.
        choices: the device's constants of choice.
    """

    def __init__(self, is_called: Callable[[], bool], choices: Choices):
        self.is_called, self.choices = is_called, choices

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        if not has_operators(mod, SPATIAL) or not self.is_called():
            return mod
        return with_bound_calls(
            mod, SPATIAL, self._phased_or_left, why="TVM has no schedule for a transposed convolution"
        )

    def _phased_or_left(self, builder: relax.BlockBuilder, call: relax.Call, var: relax.Var) -> relax.Expr:
        try:
            return _phased(builder, call, self.choices)
        except Refusal as refusal:
            self.computed[f"{call.op.name.rpartition('.')[2]} {var.name}"] = f"TVM: {refusal}"
            return call


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a transposed convolution as phases.

    Attributes:
        stride: the number of phases.
        window, border: the convolution's window, and its border on both sides.
        positions: number of positions of the convolution's result.
        first, length: the transposed convolution's result among the phases in their positions.
    """

    stride: int
    window: int
    border: int
    positions: int
    first: int
    length: int


def axis_of(extent: int, kernel: int, stride: int, padding: int, length: int) -> Axis:
    """Return the phases of an axis.

    Args:
        extent, kernel, stride, padding: those of the transposed convolution, with the padding on the first side.
        length: extent of its result.

    Raises:
        Refusal: if the padding is more than the window reaches.
    """
    if padding >= kernel:
        raise Refusal("its padding is more than its window reaches")
    window, start = -(-kernel // stride), padding // stride
    before = window - 1 - start
    last = -(-(length + padding) // stride)  # behind the last position of a phase that is in the result
    border = max(before, last - extent)
    positions = extent + 2 * border - window + 1
    first = padding - start * stride + (border - before) * stride
    return Axis(stride, window, border, positions, first, length)


def phased_weight(weight: np.ndarray, axes: list[Axis], groups: int) -> np.ndarray:
    """Return the convolution's weight. Its results are groups, channels, and the phases of each axis.

    Args:
        weight: <channels of the data, results of a group, window...>.
        axes: the window's axes.
        groups: the number of groups of channels.
    """
    channels, results, *window = weight.shape
    sizes = [axis.window * axis.stride for axis in axes]
    widths = [(0, 0), (0, 0), *((0, size - k) for size, k in zip(sizes, window))]
    parts = np.pad(weight, widths)
    split = [n for axis in axes for n in (axis.window, axis.stride)]
    parts = parts.reshape((groups, channels // groups, results, *split))
    count = len(axes)
    parts = np.flip(parts, tuple(3 + 2 * i for i in range(count)))
    order = [0, 2, *(4 + 2 * i for i in range(count)), 1, *(3 + 2 * i for i in range(count))]
    phases = math.prod(axis.stride for axis in axes)
    shape = (groups * results * phases, channels // groups, *(axis.window for axis in axes))
    return np.ascontiguousarray(parts.transpose(order)).reshape(shape)


def _phased(builder: relax.BlockBuilder, call: relax.Call, choices: Choices) -> relax.Expr:
    """Return the convolution with more channels, with its results in their positions.

    Raises:
        Refusal: if it is left to TVM.
    """
    name, attrs, (data, weight) = call.op.name, call.attrs, call.args
    spatial, groups = SPATIAL[name], int(attrs.groups)
    images, result = shape_of(data), shape_of(call)
    if str(attrs.data_layout) != f"NC{spatial}" or not isinstance(weight, tvm.ir.GenericConst):
        raise Refusal("its weight is not a constant")
    if images is None or result is None or not is_static(images[1:]) or not is_static(result[1:]):
        raise Refusal("its images are of symbolic size")
    if 0 in images[1:] or 0 in result[1:] or any(int(d) != 1 for d in attrs.dilation):
        raise Refusal("it is dilated, or has no elements")
    if {str(v.ty.dtype) for v in (data, weight, call)} - set(MULTIPLIED):
        raise Refusal("its type is none that a library is asked for")
    array = weight.value.numpy()
    window, strides = array.shape[2:], [int(s) for s in attrs.strides]
    axes = [
        axis_of(int(n), k, s, int(p), int(length))
        for n, k, s, p, length in zip(images[2:], window, strides, attrs.padding, result[2:])
    ]
    if math.prod(axis.window * axis.stride for axis in axes) > choices.most_phase_waste * math.prod(window):
        raise Refusal("its phases are of many sizes")
    made = builder.emit(
        CONVOLUTIONS[name](
            data,
            relax.const(phased_weight(array, axes, groups), str(weight.ty.dtype)),
            strides=[1] * len(axes),
            padding=[axis.border for axis in axes] * 2,
            groups=groups,
            data_layout=f"NC{spatial}",
            kernel_layout=f"OI{spatial}",
            out_dtype=attrs.out_dtype,
        )
    )
    return _in_positions(builder, made, axes, call.ty.shape.values[0], int(result[1]))


def _in_positions(
    builder: relax.BlockBuilder, made: relax.Expr, axes: list[Axis], images: Any, channels: int
) -> relax.Expr:
    """Return the phases' results in their positions."""
    emit, count = builder.emit, len(axes)
    parted = [images, channels, *(axis.stride for axis in axes), *(axis.positions for axis in axes)]
    order = [0, 1, *(at for i in range(count) for at in (2 + count + i, 2 + i))]
    whole = [images, channels, *(axis.positions * axis.stride for axis in axes)]
    made = emit(R.permute_dims(emit(R.reshape(made, parted)), order))
    made = R.reshape(made, whole)
    if all(axis.first == 0 and axis.length == n for axis, n in zip(axes, whole[2:])):
        return made
    return R.strided_slice(
        emit(made),
        list(range(2, 2 + count)),
        [axis.first for axis in axes],
        [axis.first + axis.length for axis in axes],
        assume_inbound=True,
    )
