# SPDX-License-Identifier: Apache-2.0
"""Choose the convolutions, transposed ones and gradients of weights that our CUDA kernel computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from ...compute.cuda.convolution_plan import ImageConvolution
from ...cost.choices import Choices
from ...graph.extent import is_number, is_static
from ...support.failures import Refusal
from ..legalize.transposed_convolutions import SPATIAL
from ..rewriting.operators import operator_name
from ..rewriting.views import shape_of
from .convolutions import padding_of
from .weight_gradients import WeightGradient

LAYOUTS = {
    "relax.nn.conv1d": ("NCW", "OIW"),
    "relax.nn.conv2d": ("NCHW", "OIHW"),
    "relax.nn.conv1d_transpose": ("NCW", "IOW"),
    "relax.nn.conv2d_transpose": ("NCHW", "IOHW"),
}
"""The layouts of data and weight that the kernel takes."""


@dataclass(frozen=True)
class OwnConvolution:
    """A convolution that our kernel computes for a call.

    Attributes:
        convolution: its sizes.
        data: <images, channels, extents...>, or with the first two exchanged if ``convolution.exchanged``.
        weight: <groups * outputs, inputs, window...>.
        inputs_first: the weight is <groups * inputs, outputs, window...> instead.
        flipped: the weight's window is read from the last element to the first.
        shape: the result's shape.
        title: words for the operator that it replaces, if that is not a plain convolution.
    """

    convolution: ImageConvolution
    data: Any
    weight: Any
    inputs_first: bool
    flipped: bool
    shape: tuple[int, ...]
    title: str = ""

    @property
    def is_constant(self) -> bool:
        """True if the weight is a constant."""
        return isinstance(self.weight, tvm.ir.GenericConst)


def own_convolution(call: relax.Call, gradient: WeightGradient | None, choices: Choices) -> OwnConvolution:
    """Return the convolution that our kernel computes for a call, which may be a weight's ``gradient``.

    Raises:
        Refusal: if the kernel does not compute the call.
    """
    if gradient is not None:
        return _gradient(gradient)
    convolution = _transposed(call) if operator_name(call) in SPATIAL else _convolution(call)
    if not convolution.is_constant and convolution.convolution.products < choices.packed_multiplications:
        raise Refusal("packing its weight takes too large a part of the time")
    return convolution


def check_kernel(call: relax.Call) -> None:
    """Check that a call has the layouts and the dtype that our kernel computes, with symmetric padding.

    Raises:
        Refusal: if it does not.
    """
    attrs, layouts = call.attrs, (str(call.attrs.data_layout), str(call.attrs.kernel_layout))
    if layouts != LAYOUTS[operator_name(call)] or str(attrs.out_layout) not in ("", layouts[0]):
        raise Refusal(f"layouts {layouts[0]}, {layouts[1]} are none of our kernel's")
    if any(str(value.ty.dtype) != "float32" for value in (*call.args, call)):
        raise Refusal("our kernel is for float32")
    padding_of(call)


def _convolution(call: relax.Call) -> OwnConvolution:
    attrs, (data, weight) = call.attrs, call.args
    (images, channels, *extents), (outputs, inputs, *window), shape = map(_static, (data, weight, call))
    groups = int(attrs.groups)
    if channels != inputs * groups:
        raise Refusal("its channels are not those of its weight")
    convolution = ImageConvolution(
        images,
        groups,
        inputs,
        outputs // groups,
        two_axes(extents, 1),
        two_axes(shape[2:], 1),
        two_axes(window, 1),
        two_axes(attrs.strides, 1),
        two_axes(padding_of(call), 0),
        two_axes(attrs.dilation, 1),
    )
    return OwnConvolution(convolution, data, weight, False, False, tuple(shape))


def _transposed(call: relax.Call) -> OwnConvolution:
    """Return a transposed convolution of stride 1 as a convolution of the reversed weight."""
    attrs, (data, weight) = call.attrs, call.args
    if isinstance(weight, tvm.ir.GenericConst):
        raise Refusal("of a constant weight it is a convolution already")
    (images, channels, *extents), (_, outputs, *window), shape = map(_static, (data, weight, call))
    groups, dilation = int(attrs.groups), [int(d) for d in attrs.dilation]
    if any(int(n) != 1 for n in attrs.strides) or any(map(int, attrs.output_padding)):
        raise Refusal("our kernel computes transposed convolutions of stride 1")
    padding = [d * (k - 1) - p for d, k, p in zip(dilation, window, padding_of(call))]
    if min(padding) < 0:
        raise Refusal("its padding is more than its window reaches")
    convolution = ImageConvolution(
        images,
        groups,
        channels // groups,
        outputs,
        two_axes(extents, 1),
        two_axes(shape[2:], 1),
        two_axes(window, 1),
        (1, 1),
        two_axes(padding, 0),
        two_axes(dilation, 1),
    )
    return OwnConvolution(convolution, data, weight, True, True, tuple(shape), "transposed")


def _gradient(gradient: WeightGradient) -> OwnConvolution:
    """Return the convolution that computes a weight's gradient, with images and channels of its result exchanged."""
    inputs, channels, *extents = _static(gradient.data)
    _, outputs, *window = _static(gradient.gradient)
    spatial = len(window)
    strides, padding, dilation = (
        gradient.numbers[at : at + spatial] for at in range(1, 1 + 3 * spatial, spatial)
    )
    convolution = ImageConvolution(
        channels,
        1,
        inputs,
        outputs,
        two_axes(extents, 1),
        two_axes(gradient.kernel, 1),
        two_axes(window, 1),
        two_axes(dilation, 1),
        two_axes(padding, 0),
        two_axes(strides, 1),
        exchanged=True,
    )
    shape = channels, outputs, *gradient.kernel
    return OwnConvolution(
        convolution, gradient.data, gradient.gradient, True, False, shape, "a weight's gradient"
    )


def two_axes(numbers: Sequence[Any], one: int) -> tuple[int, int]:
    """Return the numbers of rows and columns. One spatial axis has columns alone, and rows have the number ``one``."""
    first, second = [one, *map(int, numbers)][-2:]
    return first, second


def _static(value: Any) -> list[int]:
    shape = shape_of(value)
    if shape is None or not is_static(shape):
        raise Refusal("its shapes are not static")
    if any(is_number(extent, 0) for extent in shape):
        raise Refusal("it has no elements")
    return [int(extent) for extent in shape]
