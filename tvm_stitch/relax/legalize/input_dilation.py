# SPDX-License-Identifier: Apache-2.0
"""Legalize transposed convolutions of channels innermost as convolutions of stride 1 over dilated data.

TVM does not legalize them in this layout. Templates compute the function written here, without its zeros
(:mod:`tvm_stitch.compute.cpu.residues`).
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
"""The layouts of data and weight that are legalized here."""


def _legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    attrs, (data, weight) = call.attrs, call.args
    if (str(attrs.data_layout), str(attrs.kernel_layout)) != LAYOUTS[call.op.name]:
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


TRANSPOSED_CONVOLUTIONS = dict.fromkeys(LAYOUTS, _legalized)
"""For ``LegalizeOps``. TVM legalizes those in other layouts."""


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
    spatial = len(strides)
    images, *positions, _ = data.shape
    *window, inputs = weight.shape[1:]
    reach = [(int(k) - 1) * d for k, d in zip(window, dilation)]
    before = [r - p for r, p in zip(reach, padding)]
    after = [r - p + more for r, p, more in zip(reach, padding[spatial:], output_padding)]
    zero = tirx.const(0, data.dtype)
    wide = [(n - 1) * s + 1 if s > 1 else n for n, s in zip(positions, strides)]
    dilated = data

    def with_zeros(n: Any, *at: Any) -> Any:
        inside = [tirx.EQ(tirx.floormod(i, s), tirx.const(0, "int64")) for i, s in zip(at, strides) if s > 1]
        source = [tirx.floordiv(i, s) if s > 1 else i for i, s in zip(at, strides)]
        return tirx.if_then_else(tirx.all(*inside), data(n, *source, at[-1]), zero)

    if any(s > 1 for s in strides):
        dilated = te.compute([images, *wide, data.shape[-1]], with_zeros, name="spread")
    padded = [w + b + a for w, b, a in zip(wide, before, after)]
    border = dilated

    def with_border(n: Any, *at: Any) -> Any:
        source = [i - b for i, b in zip(at, before)]
        inside = [tirx.GE(i, tirx.const(b, "int64")) for i, b in zip(at, before) if b > 0]
        inside += [tirx.LT(i, w + b) for i, w, b, a in zip(at, wide, before, after) if a > 0]
        value = dilated(n, *source, at[-1])
        return tirx.if_then_else(tirx.all(*inside), value, zero) if inside else value

    if any(before) or any(after):
        border = te.compute([images, *padded, data.shape[-1]], with_border, name="border")
    results = weight.shape[0]
    elements = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(window)]
    channel = te.reduce_axis((0, inputs), "c")

    def summed(n: Any, *at: Any) -> Any:
        *position, result = at
        seen = [o + k * d for o, k, d in zip(position, elements, dilation)]
        first = tirx.floordiv(result, results // groups) * inputs if groups > 1 else 0
        factor = border(n, *seen, first + channel).astype(out_dtype)
        return te.sum(factor * weight(result, *elements, channel).astype(out_dtype), [*elements, channel])

    lengths = [p - r for p, r in zip(padded, reach)]
    return te.compute([images, *lengths, results], summed, name="conv_transpose")
