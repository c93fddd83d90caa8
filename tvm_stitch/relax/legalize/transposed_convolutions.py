# SPDX-License-Identifier: Apache-2.0
"""TransposedConvolutions: write transposed convolutions as convolutions, as matmuls, or in layouts that TVM compiles.

With channels innermost, a transposed convolution is a convolution of stride 1 with the reversed weight, over the data
with zeros between its elements. The template computes it phase by phase (``compute/phases``): one kernel, epilogue
included, and no multiplication by a zero. A convolution with ``stride`` times as many channels would need another
pass to rearrange its results. With stride 1 it is an ordinary convolution. For images of one position, with which
decoders begin, it is a matmul.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from ...graph.extent import is_number
from ...support.module_pass import module_pass
from ..rewriting.calls import with_calls
from ..rewriting.views import shape_of
from .input_dilation import flipped_weight

SPATIAL = {f"relax.nn.conv{len(axes)}d_transpose": axes for axes in ("W", "HW", "DHW")}
"""For each operator, its spatial axes."""

CONVOLUTIONS = dict(zip(SPATIAL, (R.nn.conv1d, R.nn.conv2d, R.nn.conv3d)))
"""The convolution that replaces each operator if its stride is 1."""


@module_pass
class TransposedConvolutions:
    """Write transposed convolutions as equal convolutions or matmuls, and give the others TVM's layouts.

    For images of one position each, the results are a matmul with the window's elements. A transposed convolution of
    stride 1 is a convolution of the reversed weight, with its channels exchanged in each group. Its border is
    ``dilation * (k - 1) - padding``. The weight has to be a constant, which is reversed here.

    TVM legalizes one pair of layouts alone, NCHW and IOHW. Data and weights in others are transposed. Runs before
    ``LegalizeOps``, and before layouts are chosen.

    Args:
        rewrites: whether operators become others. If not, they only get TVM's layouts.
    """

    def __init__(self, rewrites: bool = True):
        self.rewrites = rewrites

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_calls(
            mod,
            SPATIAL,
            partial(_rewritten, self.rewrites),
            why="templates compute convolutions and matmuls, and TVM legalizes one pair of layouts",
        )


def _rewritten(rewrites: bool, builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    name, attrs = call.op.name, call.attrs
    first, kernel = f"NC{SPATIAL[name]}", f"IO{SPATIAL[name]}"
    layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout or attrs.data_layout)
    data = _permuted(builder, call.args[0], layouts[0], first)
    weight = _permuted(builder, call.args[1], layouts[1], kernel)
    if rewrites and _is_product(data, attrs):
        result = _product(builder, data, weight, call)
    elif rewrites and isinstance(weight, tvm.ir.GenericConst) and _is_convolution(weight, attrs):
        result = _convolution(name, data, weight, call)
    elif layouts == (first, kernel, first):
        return call
    else:
        result = _transposed(name, data, weight, attrs)
    return result if layouts[2] == first else _permuted(builder, builder.emit(result), first, layouts[2])


def _product(
    builder: relax.BlockBuilder, data: relax.Expr, weight: relax.Expr, call: relax.Call
) -> relax.Expr:
    """Multiply images of one position each by the window's elements of all channels."""
    images, channels = data.ty.shape.values[:2]
    results = weight.ty.shape.values[1:]
    rows = builder.emit(R.reshape(data, [images, channels]))
    columns = results[0]
    for extent in results[1:]:
        columns = columns * extent
    matrix = builder.emit(R.reshape(weight, [channels, columns]))
    product = builder.emit(R.matmul(rows, matrix, out_dtype=str(call.ty.dtype)))
    return R.reshape(product, [images, *results])


def _permuted(builder: relax.BlockBuilder, value: relax.Expr, layout: str, wanted: str) -> relax.Expr:
    """Emit an operand in another layout."""
    if layout == wanted:
        return value
    axes = [layout.index(axis) for axis in wanted]
    if isinstance(value, tvm.ir.GenericConst):
        array = np.ascontiguousarray(value.value.numpy().transpose(axes))
        return relax.const(array, str(value.ty.dtype))
    return builder.emit(R.permute_dims(value, axes))


def _transposed(name: str, data: relax.Expr, weight: relax.Expr, attrs: tvm.ir.Attrs) -> relax.Expr:
    """Return the same operator in TVM's layouts."""
    function = getattr(R.nn, name.rpartition(".")[2])
    return function(
        data,
        weight,
        strides=list(attrs.strides),
        padding=list(attrs.padding),
        output_padding=list(attrs.output_padding),
        dilation=list(attrs.dilation),
        groups=int(attrs.groups),
        data_layout=f"NC{SPATIAL[name]}",
        kernel_layout=f"IO{SPATIAL[name]}",
        out_dtype=attrs.out_dtype,
    )


def _borders(weight: relax.Expr, attrs: tvm.ir.Attrs) -> list[int]:
    """Return the border of a convolution over the same data: first sides, then the other sides."""
    spatial = len(attrs.strides)
    reach = [(int(k) - 1) * int(d) for k, d in zip(weight.ty.shape.values[2:], attrs.dilation)]
    padding, more = [int(p) for p in attrs.padding], [int(p) for p in attrs.output_padding]
    after = [r - p + m for r, p, m in zip(reach, padding[spatial:], more)]
    return [*(r - p for r, p in zip(reach, padding)), *after]


def _is_product(data: relax.Expr, attrs: tvm.ir.Attrs) -> bool:
    """Return whether images have one position, the result is as large as the window, and there is one group."""
    shape = shape_of(data)
    if shape is None or not all(is_number(extent, 1) for extent in shape[2:]) or int(attrs.groups) != 1:
        return False
    return all(int(d) == 1 for d in attrs.dilation) and not any(
        map(int, (*attrs.padding, *attrs.output_padding))
    )


def _is_convolution(weight: relax.Expr, attrs: tvm.ir.Attrs) -> bool:
    return all(int(s) == 1 for s in attrs.strides) and min(_borders(weight, attrs)) >= 0


def _convolution(name: str, data: relax.Expr, weight: relax.Expr, call: relax.Call) -> relax.Expr:
    attrs, spatial = call.attrs, SPATIAL[name]
    groups, array = int(attrs.groups), weight.value.numpy()
    flipped = np.moveaxis(flipped_weight(np.moveaxis(array, 0, -1), groups), -1, 1)
    return CONVOLUTIONS[name](
        data,
        relax.const(np.ascontiguousarray(flipped), str(weight.ty.dtype)),
        strides=[1] * len(attrs.strides),
        padding=_borders(weight, attrs),
        dilation=list(attrs.dilation),
        groups=groups,
        data_layout=f"NC{spatial}",
        kernel_layout=f"OI{spatial}",
        out_dtype=attrs.out_dtype,
    )
