# SPDX-License-Identifier: Apache-2.0
"""PatchConvolutions: convolutions whose windows do not overlap become matmuls of patches.

They are the first layer of vision transformers, and make images smaller between the stages of a ConvNeXt. A library's
matmul is twice as fast as exact float32 convolutions there. Its result has channels last, as the layers around want
it. The stitched kernel before it puts patches in their order. Mostly that is a norm that writes its rows elsewhere.
No transpositions remain on either side.
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
from ...graph.dtype import HALF, MULTIPLIED
from ...graph.extent import is_number, is_static, product
from ...support.failures import Refusal
from ...support.module_pass import module_pass
from ..rewriting.calls import with_bound_calls
from ..rewriting.operators import UNARY, has_operators, operator_name
from ..rewriting.views import permutation, shape_of

LAYOUTS = {
    "relax.nn.conv1d": ("NCW", "OIW"),
    "relax.nn.conv2d": ("NCHW", "OIHW"),
    "relax.nn.conv3d": ("NCDHW", "OIDHW"),
}
"""The layouts that importers give data and weight."""


@module_pass
class PatchConvolutions:
    """Write ungrouped convolutions whose stride is their window, with no border, as ``R.matmul`` of the patches.

    Weights may be parameters. Runs before layouts are chosen, for targets whose library has matmuls.

    Args:
        is_called: returns whether the library is installed. Only convolutions ask.
        choices: the device's constants of choice.
        tf32: whether tensor cores compute float32 as well.
    """

    def __init__(self, is_called: Callable[[], bool], choices: Choices, tf32: bool = False):
        self.is_called, self.choices, self.tf32 = is_called, choices, tf32

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        if not has_operators(mod, LAYOUTS) or not self.is_called():
            return mod
        return with_bound_calls(
            mod,
            LAYOUTS,
            self._product_or_call,
            why="a matmul of patches is faster than a convolution, and keeps channels last",
        )

    def _product_or_call(self, builder: relax.BlockBuilder, call: relax.Call, var: relax.Var) -> relax.Expr:
        try:
            patches = patches_of(call)
        except Refusal:
            return call  # later passes record what computes it
        constant = isinstance(call.args[1], tvm.ir.GenericConst)
        source = _channels_last(builder, call.args[0]) if constant else None
        if source is None and not self._pays(patches, str(call.args[1].ty.dtype)):
            return call
        return _product(builder, call, patches, source, str(var.name))

    def _pays(self, patches: Patches, dtype: str) -> bool:
        """Return whether the matmul saves the time of a kernel that copies the patches."""
        on_tensor_cores = dtype in HALF or self.tf32
        if on_tensor_cores and patches.channels > self.choices.most_patch_channels_on_tensor_cores:
            return False
        return patches.results >= self.choices.fewest_patch_results


@dataclass(frozen=True)
class Patches:
    """The factors of a convolution's matmul.

    Attributes:
        images: extent of the batch, an expression.
        channels, results: channels of the data and of the result.
        window: extents of a patch.
        positions: number of patches along each spatial axis.
        extents: extents of an image. Elements behind the last patch are not read.
    """

    images: Any
    channels: int
    results: int
    window: tuple[int, ...]
    positions: tuple[int, ...]
    extents: tuple[int, ...]


def patches_of(call: relax.Call) -> Patches:
    """Return the patches of a convolution.

    Raises:
        Refusal: if its windows overlap or have gaps, or its images are of symbolic size.
    """
    attrs, (data, weight) = call.attrs, call.args
    layouts = str(attrs.data_layout), str(attrs.kernel_layout)
    if layouts != LAYOUTS[operator_name(call)] or str(attrs.out_layout) not in ("", layouts[0]):
        raise Refusal(f"its layouts are {layouts[0]}, {layouts[1]}")
    if {str(value.ty.dtype) for value in (data, weight)} - set(MULTIPLIED):
        raise Refusal("its type is none that a library is asked for")
    shapes = [shape_of(value) for value in (data, weight, call)]
    if any(shape is None or not is_static(shape[1:]) or is_number(shape[0], 0) for shape in shapes):
        raise Refusal("its images are of symbolic size")
    (images, channels, *extents), (results, inputs, *window), (_, _, *positions) = (
        list(s or ()) for s in shapes
    )
    if not is_static([results]) or 0 in (channels, *extents, results, *window, *positions):
        raise Refusal("it has no elements")
    if int(attrs.groups) != 1 or channels != inputs:
        raise Refusal("it has groups")
    if list(map(int, attrs.strides)) != window or math.prod(window) == 1 or any(map(int, attrs.padding)):
        raise Refusal("its windows overlap, have gaps or a border")
    if any(int(dilation) != 1 and extent > 1 for dilation, extent in zip(attrs.dilation, window)):
        raise Refusal("its windows have gaps")
    return Patches(images, channels, int(results), tuple(window), tuple(positions), tuple(extents))


def _channels_last(builder: relax.BlockBuilder, data: relax.Expr) -> relax.Expr | None:
    """Return the data with channels last, if ``data`` is its transposition, else None.

    Operators of one operand may be between the two.
    """
    value: Any = builder.lookup_binding(data) if isinstance(data, relax.Var) else None
    name = operator_name(value)
    if name not in UNARY and name != "relax.permute_dims":
        return None
    if isinstance(value.args[0], relax.DataflowVar) and not isinstance(data, relax.DataflowVar):
        return None  # it is not visible where data is
    if name in UNARY:
        inner = _channels_last(builder, value.args[0])
        if inner is None:
            return None
        return builder.emit(relax.Call(value.op, [inner], value.attrs, value.ty_args))
    rank = len(shape_of(data) or ())
    return value.args[0] if permutation(value, rank) == [0, rank - 1, *range(1, rank - 1)] else None


def _product(
    builder: relax.BlockBuilder, call: relax.Call, patches: Patches, source: relax.Expr | None, name: str
) -> relax.Expr:
    """Return the matmul, named as the convolution, with the convolution's result layout: channels second.

    ``source`` is the data with channels last, if that exists. Channels are then last in a patch, else in the weight's
    order.
    """
    p, emit, count = patches, builder.emit, len(patches.window)
    data, weight = call.args
    last = source is not None
    data = source if last else data
    first_axis = 1 if last else 2
    cropped = [position * extent for position, extent in zip(p.positions, p.window)]
    if tuple(cropped) != p.extents:
        axes = [first_axis + i for i in range(count)]
        data = emit(R.strided_slice(data, axes, [0] * count, cropped, assume_inbound=True))
    parted = [n for position, extent in zip(p.positions, p.window) for n in (position, extent)]
    shape = [p.images, *parted, p.channels] if last else [p.images, p.channels, *parted]
    of_position = [first_axis + 2 * i for i in range(count)]
    of_window = [first_axis + 2 * i + 1 for i in range(count)]
    order = [0, *of_position, *of_window, 1 + 2 * count] if last else [0, *of_position, 1, *of_window]
    reduction = p.channels * math.prod(p.window)
    result = emit(R.permute_dims(emit(R.reshape(data, shape)), order))
    result = emit(R.reshape(result, [product([p.images, *p.positions]), reduction]))
    if isinstance(weight, tvm.ir.GenericConst):
        right = relax.const(_packed(weight.value.numpy(), last), str(weight.ty.dtype))
    else:
        right = emit(R.permute_dims(emit(R.reshape(weight, [p.results, reduction])), [1, 0]))
    result = emit(R.matmul(result, right, out_dtype=str(call.ty.dtype)), name)
    result = emit(R.reshape(result, [p.images, *p.positions, p.results]))
    return R.permute_dims(result, [0, 1 + count, *range(1, 1 + count)])


def _packed(weight: np.ndarray, last: bool) -> np.ndarray:
    """Return a weight ``<results, channels, window...>`` as the matmul's right side ``<patch elements, results>``."""
    ordered = np.moveaxis(weight, 1, -1) if last else weight
    return np.ascontiguousarray(ordered.reshape(len(weight), -1).T)
