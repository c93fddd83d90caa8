# SPDX-License-Identifier: Apache-2.0
"""PaddedTaps: drop the taps of a convolution's window that read nothing but padding.

A window of 3 x 3 with dilation 36 on an image of 32 x 32 reads the image with its middle tap only. Segmentation models
(DeepLab's pyramid of dilations) have such convolutions. They become convolutions of a smaller window with less
padding, often of a single tap, which is a matmul.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from ...graph.extent import is_static
from ...support.module_pass import module_pass
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import shape_of

CONVOLUTIONS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")
_SPATIAL = "DHW"


@module_pass
class PaddedTaps:
    """Shrink the windows of convolutions whose weight is a constant of finite numbers.

    The image's extents are static. Other weights stay: an infinite number times a zero of the padding is NaN.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return apply_rules(mod, [RULE])


def _without_taps(match: Match) -> relax.Expr | None:
    data, weight = match.value.args
    attrs, shape = match.before.attrs, shape_of(data)
    if shape is None or not isinstance(weight, tvm.ir.GenericConst):
        return None
    letters = [letter for letter in _SPATIAL if letter in str(attrs.data_layout)]
    extents = [shape[str(attrs.data_layout).index(letter)] for letter in letters]
    axes = [str(attrs.kernel_layout).index(letter) for letter in letters]
    if not is_static(extents):
        return None
    values, count = weight.value.numpy(), len(letters)
    padding, kept = [int(width) for width in attrs.padding], [slice(None)] * values.ndim
    for i, (axis, extent) in enumerate(zip(axes, extents)):
        stride, dilation = int(attrs.strides[i]), int(attrs.dilation[i])
        used = taps(int(extent), values.shape[axis], stride, dilation, (padding[i], padding[count + i]))
        if not used:
            return None
        kept[axis] = slice(used[0], used[-1] + 1)
        padding[i] -= used[0] * dilation
        padding[count + i] -= (values.shape[axis] - 1 - used[-1]) * dilation
    smaller = np.ascontiguousarray(values[tuple(kept)])
    # A padding below zero would cut the image: then the strides leave out its end, and the window stays as it is.
    if smaller.shape == values.shape or min(padding) < 0 or not np.isfinite(values.astype("float32")).all():
        return None
    changed = {
        "padding": padding,
        "data_layout": str(attrs.data_layout),
        "kernel_layout": str(attrs.kernel_layout),
    }
    make = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}[count]
    return make(
        data,
        relax.const(smaller, str(weight.ty.dtype)),
        strides=[int(s) for s in attrs.strides],
        dilation=[int(d) if smaller.shape[axis] > 1 else 1 for axis, d in zip(axes, attrs.dilation)],
        groups=int(attrs.groups),
        out_layout=str(attrs.out_layout),
        out_dtype=str(attrs.out_dtype) if attrs.out_dtype is not None else None,
        **changed,
    )


def taps(extent: int, window: int, stride: int, dilation: int, padding: tuple[int, int]) -> list[int]:
    """Return the taps of a window along one axis that read an element of the image at some output position.

    Args:
        extent: elements of the image along the axis.
        window: number of taps.
        stride: distance of neighbouring output positions.
        dilation: distance of neighbouring taps.
        padding: widths of the padding in front of the image and behind it.
    """
    positions = (extent + sum(padding) - dilation * (window - 1) - 1) // stride + 1
    used = []
    for tap in range(window):
        first = tap * dilation - padding[0]
        last = first + (positions - 1) * stride
        # The first position at or behind the image's beginning
        start = first if first >= 0 else first + -(first // stride) * stride
        if positions > 0 and start <= min(last, extent - 1):
            used.append(tap)
    return used


RULE = Rule("taps that read padding add nothing", _without_taps, CONVOLUTIONS)
