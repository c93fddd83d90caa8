# SPDX-License-Identifier: Apache-2.0
"""Pack computed weights for our CUDA convolution, by operators that are stitched."""

from __future__ import annotations

import math

from tvm import relax
from tvm.relax import op as R

from ...compute.cuda.convolution_plan import DEPTH, ConvolutionPlan
from .image_convolutions import OwnConvolution


def packed(builder: relax.BlockBuilder, convolution: OwnConvolution, plan: ConvolutionPlan) -> relax.Expr:
    """Emit the weight of a convolution in the kernel's layout. ``packed_weight`` does the same for constants."""
    c, taps = convolution.convolution, math.prod(convolution.convolution.window)
    channels = (c.inputs, c.outputs) if convolution.inputs_first else (c.outputs, c.inputs)
    parts = builder.emit(R.reshape(convolution.weight, [c.groups, *channels, taps]))
    if convolution.flipped and taps > 1:
        parts = builder.emit(R.flip(parts, 3))
    inputs, outputs = (1, 2) if convolution.inputs_first else (2, 1)
    order = [0, inputs, 3, outputs] if plan.gathered else [0, 3, inputs, outputs]
    runs, reduction = (1, c.inputs * taps) if plan.gathered else (taps, c.inputs)
    ordered = builder.emit(R.permute_dims(parts, order))
    lines = builder.emit(R.reshape(ordered, [c.groups * runs, reduction, c.outputs]))
    deeper, longer = -reduction % DEPTH, -c.outputs % plan.tile.rows
    if deeper or longer:
        lines = builder.emit(R.nn.pad(lines, [0, 0, 0, deeper, 0, longer]))
    return builder.emit(R.reshape(lines, [-1, c.outputs + longer]))
