# SPDX-License-Identifier: Apache-2.0
"""PhasedConvolutions: write transposed convolutions as a library's convolution, and a rearrangement.

If cuDNN is installed and the weight is a constant, the convolution of cuDNN has the phases as channels. The stitched
kernel behind it computes the rearrangement together with the following operators. That is one kernel more than TVM's
single one, which has practically no schedule.

If the window is no multiple of the stride, some phases have one element fewer than others, and get convolutions of
their own. A window filled with zeros instead would multiply data by them, and an infinity times zero is NaN.

``LibraryConvolutions`` gets the others: dilated ones, symbolic images, and windows much smaller than the stride. The
last have phases without elements, or many convolutions for few results.
"""

from __future__ import annotations

import itertools
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
    the data with every ``stride``-th element of the window. All phases with as many elements become the channels of
    one convolution. A stitched kernel puts the results into their positions, and computes the following operators.

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
            self.computed[call.op.name.rpartition(".")[2], var] = f"TVM: {refusal}"
            return call


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a transposed convolution as phases.

    Attributes:
        stride: the number of phases.
        full: how many phases have the whole window. Those behind them have one element less.
        window, border: the convolution's window, and its border on both sides.
        positions: number of positions of the convolution's result.
        first, length: the transposed convolution's result among the phases in their positions.
    """

    stride: int
    full: int
    window: int
    border: int
    positions: int
    first: int
    length: int

    def runs(self) -> list[Run]:
        """Return the phases of each size of window."""
        short = [Run(self.full, self.stride, self.window - 1, 1)] if self.full < self.stride else []
        return [Run(0, self.full, self.window, 0), *short]


@dataclass(frozen=True)
class Run:
    """Adjacent phases with windows of one size.

    Attributes:
        begin, end: the phases.
        window: number of elements of each.
        dropped: how many positions its convolution has before the first one of the whole window.
    """

    begin: int
    end: int
    window: int
    dropped: int


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
    return Axis(stride, kernel - (window - 1) * stride, window, border, positions, first, length)


def phased_weight(weight: np.ndarray, axes: list[Axis], runs: tuple[Run, ...], groups: int) -> np.ndarray:
    """Return the weight of a convolution. Its results are groups, channels, and the phases of each axis.

    Args:
        weight: <channels of the data, results of a group, window...>.
        axes: the window's axes.
        runs: the phases of each axis.
        groups: the number of groups of channels.
    """
    channels, results, *_ = weight.shape
    count = len(axes)
    parts = weight.reshape((groups, channels // groups, results, *weight.shape[2:]))
    for i, (axis, run) in enumerate(zip(axes, runs)):
        elements = np.arange(run.window)[::-1, None] * axis.stride + np.arange(run.begin, run.end)
        parts = np.take(parts, elements, axis=3 + 2 * i)
    order = [0, 2, *(4 + 2 * i for i in range(count)), 1, *(3 + 2 * i for i in range(count))]
    phases = math.prod(run.end - run.begin for run in runs)
    shape = (groups * results * phases, channels // groups, *(run.window for run in runs))
    return np.ascontiguousarray(parts.transpose(order)).reshape(shape)


def _phased(builder: relax.BlockBuilder, call: relax.Call, choices: Choices) -> relax.Expr:
    """Return the convolution with more channels, with its results in their positions.

    Raises:
        Refusal: if it is left to TVM.
    """
    name, attrs, (data, weight) = call.op.name, call.attrs, call.args
    spatial = SPATIAL[name]
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
    results = call.ty.shape.values[0], int(result[1])
    combinations = itertools.product(*(axis.runs() for axis in axes))
    joined = _joined(builder, [_of_runs(builder, call, array, axes, runs) for runs in combinations], axes)
    return _in_positions(builder, joined, axes, *results)


def _of_runs(
    builder: relax.BlockBuilder, call: relax.Call, weight: np.ndarray, axes: list[Axis], runs: tuple[Run, ...]
) -> relax.Expr:
    """Return the results of some phases, ``(images, channels, phases..., positions...)``."""
    attrs, spatial = call.attrs, SPATIAL[call.op.name]
    images, channels = call.ty.shape.values[:2]
    phases = [run.end - run.begin for run in runs]
    shape = [images, channels, *phases, *(axis.positions for axis in axes)]
    if not all(run.window for run in runs):
        return builder.emit(R.zeros(shape, call.ty.dtype))
    result = builder.emit(
        CONVOLUTIONS[call.op.name](
            call.args[0],
            relax.const(phased_weight(weight, axes, runs, int(attrs.groups)), str(call.args[1].ty.dtype)),
            strides=[1] * len(axes),
            padding=[axis.border for axis in axes] * 2,
            groups=int(attrs.groups),
            data_layout=f"NC{spatial}",
            kernel_layout=f"OI{spatial}",
            out_dtype=attrs.out_dtype,
        )
    )
    dropping = [i for i, run in enumerate(runs) if run.dropped]
    if dropping:
        begins = [runs[i].dropped for i in dropping]
        ends = [runs[i].dropped + axes[i].positions for i in dropping]
        at = [2 + i for i in dropping]
        result = builder.emit(R.strided_slice(result, at, begins, ends, assume_inbound=True))
    return builder.emit(R.reshape(result, shape))


def _joined(builder: relax.BlockBuilder, parts: list[relax.Expr], axes: list[Axis]) -> relax.Expr:
    """Return the results of all phases. ``parts`` has those of the last axis next to each other."""
    for i, axis in reversed(list(enumerate(axes))):
        count = len(axis.runs())
        if count > 1:
            runs = [parts[at : at + count] for at in range(0, len(parts), count)]
            parts = [builder.emit(R.concat(run, axis=2 + i)) for run in runs]
    return parts[0]


def _in_positions(
    builder: relax.BlockBuilder, result: relax.Expr, axes: list[Axis], images: Any, channels: int
) -> relax.Expr:
    """Return the phases' results in their positions."""
    emit, count = builder.emit, len(axes)
    order = [0, 1, *(at for i in range(count) for at in (2 + count + i, 2 + i))]
    whole = [images, channels, *(axis.positions * axis.stride for axis in axes)]
    result = R.reshape(emit(R.permute_dims(result, order)), whole)
    if all(axis.first == 0 and axis.length == n for axis, n in zip(axes, whole[2:])):
        return result
    return R.strided_slice(
        emit(result),
        list(range(2, 2 + count)),
        [axis.first for axis in axes],
        [axis.first + axis.length for axis in axes],
        assume_inbound=True,
    )
