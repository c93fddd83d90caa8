# SPDX-License-Identifier: Apache-2.0
"""Convolution with any number of spatial axes, strided, dilated, grouped, recognized in a graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import compat
from ..compat import Analyzer, Expr, Var, tir
from ..graph.dtype import summed_dtype
from ..graph.extent import Extent, product
from ..graph.ir import Axis, Operator, Tensor
from ..support.failures import Refusal
from .contraction import Contraction, loaded
from .cpu.padding import Padded, padded
from .cpu.residues import Residues, Window, residues_of, whole


@dataclass(frozen=True)
class Convolution:
    """``output[n, o..., f] = sum over r..., c of data[n, o * stride + r * dilation..., c of f] * weight[f, r...,
    c]``.

    The channels are innermost in data and output, ordered by group.

    Attributes:
        data: the data, with its border.
        weight: a tensor of the axes f, r... and c, in any order.
        weight_order: for each of the axes f, r..., c, the corresponding axis of the weight.
        output: the result.
        batch: number of images.
        windows: the spatial axes, at least two. A convolution over one axis has a trivial first one.
        groups, inputs, outputs: number of groups, and the channels that each group reads and writes.
        divided: the residue classes of a convolution over dilated data, else None. ``data`` is then the data before
            dilation. Windows cover the elements that all classes read for one position of each.
    """

    data: Padded
    weight: Tensor
    weight_order: tuple[int, ...]
    output: Tensor
    batch: Extent
    windows: tuple[Window, ...]
    groups: int
    inputs: int
    outputs: int
    divided: Residues | None = None

    @property
    def summed(self) -> str:
        """The dtype in which products are summed."""
        return summed_dtype(self.output.dtype)

    @property
    def residues(self) -> Residues:
        """The residue classes of the outputs. An undivided convolution has a single one."""
        return whole(self.windows) if self.divided is None else self.divided

    @property
    def columns(self) -> int:
        """Channels of the output."""
        return self.groups * self.outputs

    @property
    def rows(self) -> Extent:
        """Output positions, over all images."""
        return product((self.batch, *self.residues.lengths))

    @property
    def reduction(self) -> int:
        """Products per sum, summed over one output of each residue class."""
        return sum(self.reductions)

    @property
    def reductions(self) -> list[int]:
        """Products per sum, by residue class."""
        return [self.inputs * math.prod(taps.kernel for taps in residue) for residue in self.residues.each]

    @property
    def is_depthwise(self) -> bool:
        """True if every channel is its own group."""
        return self.inputs == 1 and self.outputs == 1

    @property
    def is_pointwise(self) -> bool:
        """True if the convolution is a matrix product with the data as stored."""
        return (
            self.groups == 1
            and self.divided is None
            and self.data.is_plain
            and all(w.kernel == 1 and w.stride == 1 for w in self.windows)
            and tuple(w.outputs for w in self.windows) == self.data.shape[1:-1]
        )


def convolution_of(op: Operator) -> tuple[Convolution, list[Operator]]:
    """Return the convolution that an operator computes, and the operators that compute its data.

    Raises:
        Refusal: if the operator computes something else, or its tensors are stored in another order.
    """
    if not op.contraction or op.combiner != "sum" or len(op.spatial) < 3 or compat.kind(op.value) != "Mul":
        raise Refusal("no convolution")
    left, right = loaded(op.value.a), loaded(op.value.b)
    images, positions, channel = op.spatial[0], op.spatial[1:-1], op.spatial[-1]
    data, weight = (op.operand[compat.load_buffer(load)] for load in (left, right))
    if weight.producer is not None:
        raise Refusal(f"{weight.name} is computed in the same kernel")
    data_indices, weight_indices = compat.elements(left.indices), compat.elements(right.indices)
    if not any(compat.same_var(index, channel.var) for index in weight_indices):
        raise Refusal("its channels are not innermost: convolutions of images of static size are converted")
    if len(data_indices) != len(op.spatial) or not compat.same_var(data_indices[0], images.var):
        raise Refusal(f"{data.name} is not read image by image")
    read_windows = [_window(index, position, op) for index, position in zip(data_indices[1:-1], positions)]
    windows, kernels = [w for w, _ in read_windows], [axis for _, axis in read_windows]
    rest = [axis for axis in op.reduce if axis not in kernels]
    if len(rest) > 1:
        raise Refusal(f"{data.name} is not read window by window")
    inputs = _static(rest[0].extent) if rest else 1
    order = _weight_order(weight, weight_indices, [channel, *kernels, *rest])
    groups, outputs = _groups(data_indices[-1], channel, rest[0].var if rest else None, inputs, data)
    source, operators = padded(data)
    if len(windows) == 1:
        windows = [Window(1, 1, 1, 1), *windows]
        source = _with_unit(source)
    if any(not isinstance(extent, int) for extent in source.shape[1:]):
        raise Refusal("its images are of symbolic size")
    of_all, divided = tuple(windows), None
    if source.is_dilated:
        source, of_all, divided = residues_of(source, of_all)
    convolution = Convolution(
        source, weight, order, op.output, images.extent, of_all, groups, inputs, outputs, divided
    )
    return convolution, operators


def _window(index: Expr, position: Axis, op: Operator) -> tuple[Window, Axis | None]:
    """Return the window that a spatial axis reads, and the window's reduced axis."""
    variables = [position.var, *(a.var for a in op.reduce)]
    factors = [compat.int_value(f) for f in compat.arith.detect_linear_equation(index, variables)]
    if not factors or None in factors or factors[-1] != 0:
        raise Refusal("its windows are not evenly spaced")
    used = [(axis, f) for axis, f in zip(op.reduce, factors[1:-1]) if f]
    if len(used) > 1 or (factors[0] or 0) < 1:
        raise Refusal("its windows are not evenly spaced")
    axis, dilation = used[0] if used else (None, 1)
    kernel = 1 if axis is None else _static(axis.extent)
    assert factors[0] is not None and dilation is not None
    if dilation < 1:
        raise Refusal("its windows are read backwards")
    return Window(_static(position.extent), kernel, factors[0], dilation), axis


def _static(extent: Extent) -> int:
    if not isinstance(extent, int):
        raise Refusal("its images are of symbolic size")
    return extent


def _weight_order(weight: Tensor, of: Sequence[Expr], axes: Sequence[Axis | None]) -> tuple[int, ...]:
    """Return the weight's axis for the output's channel, the window's axes and the input's channel (-1: of one
    element).
    """
    order = []
    for axis in axes:
        positions = [i for i, index in enumerate(of) if axis is not None and index.same_as(axis.var)]
        if axis is not None and len(positions) != 1:
            raise Refusal(f"{weight.name} is not read along whole axes")
        order.append(positions[0] if positions else -1)
    for i, index in enumerate(of):
        if i not in order and compat.int_value(index) != 0:
            raise Refusal(f"{weight.name} is not read along whole axes")
    return tuple(order)


def _groups(index: Expr, channel: Axis, inner: Var | None, inputs: int, data: Tensor) -> tuple[int, int]:
    """Return the number of channel groups, and the channels that each group writes."""
    count, channels = _static(data.shape[-1]), _static(channel.extent)
    if inputs == 0 or count % inputs or (count // inputs and channels % (count // inputs)):
        raise Refusal(f"the channels of {data.name} are not read in groups")
    groups = max(count // inputs, 1)
    outputs = channels // groups
    analyzer = Analyzer()
    compat.bind_range(analyzer, channel.var, compat.const(channels, "int64"))
    offset: Any = compat.const(0, "int64") if inner is None else inner
    if inner is not None:
        compat.bind_range(analyzer, inner, compat.const(inputs, "int64"))
    if outputs:
        offset = offset + tir.floordiv(channel.var, compat.const(outputs, "int64")) * inputs
    if not analyzer.can_prove_equal(index, offset):
        raise Refusal(f"the channels of {data.name} are not read in groups")
    return groups, outputs


def as_contraction(convolution: Convolution) -> Contraction:
    """Return a pointwise convolution as a matrix product of its rows of channels."""
    transposed = convolution.weight_order[0] < convolution.weight_order[-1]
    return Contraction(
        convolution.data.source,
        convolution.weight,
        convolution.output,
        1,
        convolution.rows,
        convolution.outputs,
        convolution.inputs,
        transposed,
    )


def _with_unit(data: Padded) -> Padded:
    """Return data with one spatial axis as data with two: images of one row."""
    order = tuple(axis if axis == 0 else axis + 1 for axis in data.order)
    images, *rest = data.shape
    kept, *inner = data.inner
    return Padded(
        data.source,
        order,
        (images, 1, *rest),
        (kept, 1, *inner),
        (data.before[0], 0, *data.before[1:]),
        data.fill,
        data.spacing and (data.spacing[0], 1, *data.spacing[1:]),
    )
