# SPDX-License-Identifier: Apache-2.0
"""Legalize transposed convolutions as convolutions of stride 1 over dilated data.

TVM does not legalize them with channels innermost. Templates compute the function written here, without its zeros
(:mod:`tvm_stitch.compute.cpu.residues`). With channels first, TVM's legalization stays if the window is not dilated.

Fault: TVM fills a dilated window with zeros, and multiplies data by them. An infinity becomes NaN where the window
    does not read it. The zeros also cost most of the multiplications.
Seen in: TVM 0.27.0
Input: relax.nn.conv1d_transpose with dilation 2, over data with an infinity
Upstream: none known
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

LAYOUTS = {
    "relax.nn.conv1d_transpose": ("NWC", "OWI"),
    "relax.nn.conv2d_transpose": ("NHWC", "OHWI"),
    "relax.nn.conv3d_transpose": ("NDHWC", "ODHWI"),
}
"""The layouts of data and weight with channels innermost."""

CHANNELS_FIRST = {
    "relax.nn.conv1d_transpose": ("NCW", "IOW"),
    "relax.nn.conv2d_transpose": ("NCHW", "IOHW"),
    "relax.nn.conv3d_transpose": ("NCDHW", "IODHW"),
}
"""The layouts of data and weight that TVM legalizes."""


def _legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    attrs, (data, weight) = call.attrs, call.args
    layouts = str(attrs.data_layout), str(attrs.kernel_layout)
    if layouts == CHANNELS_FIRST[call.op.name] and any(int(d) != 1 for d in attrs.dilation):
        return _with_dilated_window(builder, call)
    if layouts != LAYOUTS[call.op.name]:
        return call.op.get_attr("FLegalize")(builder, call)
    if not isinstance(weight, tvm.ir.GenericConst):
        return call
    groups = int(attrs.groups)
    flipped = relax.const(flipped_weight(weight.value.numpy(), groups), str(weight.ty.dtype))
    name = str(call.op.name).rpartition(".")[2]
    return builder.call_te(
        over_dilated_input,
        data,
        flipped,
        [int(s) for s in attrs.strides],
        [int(p) for p in attrs.padding],
        [int(d) for d in attrs.dilation],
        groups,
        [int(p) for p in attrs.output_padding],
        str(call.ty.dtype),
        primfunc_name_hint=name,
    )


def _with_dilated_window(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize a call with channels first, in which only elements of the window meet data."""
    attrs = call.attrs
    if str(attrs.out_layout or attrs.data_layout) != str(attrs.data_layout):
        return call.op.get_attr("FLegalize")(builder, call)
    return builder.call_te(
        over_dilated_channels,
        *call.args,
        [int(s) for s in attrs.strides],
        [int(p) for p in attrs.padding],
        [int(d) for d in attrs.dilation],
        int(attrs.groups),
        [int(p) for p in attrs.output_padding],
        str(call.ty.dtype),
        primfunc_name_hint=str(call.op.name).rpartition(".")[2],
    )


TRANSPOSED_CONVOLUTIONS = dict.fromkeys(LAYOUTS, _legalized)
"""For ``LegalizeOps``. Calls that are not legalized here are left to TVM's legalization."""


def flipped_weight(weight: np.ndarray, groups: int) -> np.ndarray:
    """Return a transposed convolution's weight as the weight of the convolution over dilated data.

    Args:
        weight: <channels of the result of a group, window..., channels of the data of all groups>.
        groups: the number of groups of channels.

    Returns:
        <channels of the result of all groups, window, the last element first..., channels of the data of a group>.
    """
    outputs, *window, channels = weight.shape
    parts = weight.reshape((outputs, *window, groups, channels // groups))
    parts = np.flip(parts, tuple(range(1, 1 + len(window))))
    ordered = np.moveaxis(parts, -2, 0)
    return np.ascontiguousarray(ordered.reshape((groups * outputs, *window, channels // groups)))


def over_dilated_input(
    data: te.Tensor,
    weight: te.Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_padding: Sequence[int],
    out_dtype: str,
) -> te.Tensor:
    """Compute a transposed convolution as a convolution of stride 1 over data with zeros between and around elements.

    Args:
        data: ``(images, positions..., channels)``.
        weight: the reversed weight, ``(results, window..., channels of a group)``.
        strides: the transposed convolution's strides.
        padding: positions that the result lacks, on the first side of each axis and then on the other side.
        dilation: the distance between elements of the window.
        groups: the number of groups of channels.
        output_padding: additional positions of the result, on the other side of each axis.
        out_dtype: the dtype of factors, sums and result.

    Returns:
        ``(images, positions..., results)``.
    """
    *window, inputs = weight.shape[1:]
    border = _bordered(data, 1, window, strides, padding, dilation, output_padding)
    results = weight.shape[0]
    elements = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(window)]
    channel = te.reduce_axis((0, inputs), "c")

    def summed(n: Any, *at: Any) -> Any:
        *position, result = at
        seen = [o + k * d for o, k, d in zip(position, elements, dilation)]
        first = tirx.floordiv(result, results // groups) * inputs if groups > 1 else 0
        factor = border(n, *seen, first + channel).astype(out_dtype)
        return te.sum(factor * weight(result, *elements, channel).astype(out_dtype), [*elements, channel])

    lengths = _lengths(border, 1, window, dilation)
    return te.compute([data.shape[0], *lengths, results], summed, name="conv_transpose")


def over_dilated_channels(
    data: te.Tensor,
    weight: te.Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_padding: Sequence[int],
    out_dtype: str,
) -> te.Tensor:
    """Compute :func:`over_dilated_input` with channels first, and with the operator's own weight.

    Args:
        data: ``(images, channels, positions...)``.
        weight: ``(channels, results of a group, window...)``.
        strides, padding, dilation, groups, output_padding, out_dtype: as in :func:`over_dilated_input`.

    Returns:
        ``(images, results of all groups, positions...)``.
    """
    channels, each, *window = weight.shape
    border = _bordered(data, 2, window, strides, padding, dilation, output_padding)
    elements = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(window)]
    channel = te.reduce_axis((0, channels // groups), "c")

    def summed(n: Any, result: Any, *position: Any) -> Any:
        seen = [o + k * d for o, k, d in zip(position, elements, dilation)]
        first = tirx.floordiv(result, each) * (channels // groups) if groups > 1 else 0
        column = tirx.floormod(result, each) if groups > 1 else result
        reversed_ = [extent - 1 - k for extent, k in zip(window, elements)]
        factor = border(n, first + channel, *seen).astype(out_dtype)
        other = weight(first + channel, column, *reversed_).astype(out_dtype)
        return te.sum(factor * other, [channel, *elements])

    lengths = _lengths(border, 2, window, dilation)
    return te.compute([data.shape[0], each * groups, *lengths], summed, name="conv_transpose")


def _lengths(border: te.Tensor, axis: int, window: Sequence[Any], dilation: Sequence[int]) -> list[Any]:
    """Return the extents of a result's positions. ``axis`` is the first spatial axis."""
    extents = border.shape[axis : axis + len(dilation)]
    return [e - (int(k) - 1) * d for e, k, d in zip(extents, window, dilation)]


def _bordered(
    data: te.Tensor,
    axis: int,
    window: Sequence[Any],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
) -> te.Tensor:
    """Return the data with zeros between and around elements. ``axis`` is its first spatial axis."""
    spatial = len(strides)
    end = axis + spatial
    head, positions, tail = data.shape[:axis], data.shape[axis:end], data.shape[end:]
    reach = [(int(k) - 1) * d for k, d in zip(window, dilation)]
    before = [r - p for r, p in zip(reach, padding)]
    after = [r - p + more for r, p, more in zip(reach, padding[spatial:], output_padding)]
    zero = tirx.const(0, data.dtype)
    wide = [(n - 1) * s + 1 if s > 1 else n for n, s in zip(positions, strides)]
    dilated = data

    def with_zeros(*index: Any) -> Any:
        at = index[axis:end]
        inside = [tirx.EQ(tirx.floormod(i, s), tirx.const(0, "int64")) for i, s in zip(at, strides) if s > 1]
        source = [tirx.floordiv(i, s) if s > 1 else i for i, s in zip(at, strides)]
        return tirx.if_then_else(tirx.all(*inside), data(*index[:axis], *source, *index[end:]), zero)

    if any(s > 1 for s in strides):
        dilated = te.compute([*head, *wide, *tail], with_zeros, name="spread")
    padded = [w + b + a for w, b, a in zip(wide, before, after)]

    def with_border(*index: Any) -> Any:
        at = index[axis:end]
        source = [i - b for i, b in zip(at, before)]
        inside = [tirx.GE(i, tirx.const(b, "int64")) for i, b in zip(at, before) if b > 0]
        inside += [tirx.LT(i, w + b) for i, w, b, a in zip(at, wide, before, after) if a > 0]
        value = dilated(*index[:axis], *source, *index[end:])
        return tirx.if_then_else(tirx.all(*inside), value, zero) if inside else value

    if any(before) or any(after):
        return te.compute([*head, *padded, *tail], with_border, name="border")
    return dilated
