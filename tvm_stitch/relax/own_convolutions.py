# SPDX-License-Identifier: Apache-2.0
"""OwnConvolutions: exact float32 convolutions of constant weights become calls of our own CUDA kernel.

Before :mod:`.library_convolutions`, which takes what is left. Sums that the kernel divides are added up by the
stitched kernel behind the convolution, unless :mod:`.convolution_epilogues` finds that the convolution's can do so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, te

from ..compute.cuda_convolution import (
    FIRST_CAPABILITY,
    KernelOf,
    cuda_convolution,
    kernel_of,
    packed_weight,
)
from ..compute.cuda_convolution_plan import ConvolutionPlan, ImageConvolution, convolution_plan
from ..config import StitchConfig
from ..device import DeviceModel, device_model
from ..failures import Refusal
from ..graph.extent import is_number, is_static
from ..module_pass import module_pass
from ..plan import heuristics
from ..target import capability_of
from .compute_pass import ComputePass
from .library_convolutions import padding_of
from .operators import operator_name
from .rewritten_calls import with_bound_calls
from .views import shape_of

LAYOUTS = {"relax.nn.conv1d": ("NCW", "OIW"), "relax.nn.conv2d": ("NCHW", "OIHW")}
"""The layouts of data and weight that the kernel takes."""

CONVOLUTION_ATTR = "tvm_stitch.convolution"
"""Of a kernel: what it is compiled for, as numbers."""


@module_pass
class OwnConvolutions(ComputePass):
    """Replace ``R.nn.conv1d`` and ``conv2d`` of static shape by our kernel, with the weight packed.

    ``computed``, if given, receives for each of them what computes it. Other convolutions stay as they are.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        asked = self.config.compute_of("convolution") in ("auto", "templates") and not self.config.tf32
        if not asked or capability_of(self.target) < FIRST_CAPABILITY:
            return mod
        rewriter = _Rewriter(self)
        made = with_bound_calls(mod, LAYOUTS, rewriter.replaced)
        return relax.transform.DeadCodeElimination()(made) if rewriter.kernels else mod


def image_convolution(call: Any) -> ImageConvolution:
    """What a call computes.

    Raises:
        Refusal: where it is none that our kernel computes.
    """
    attrs, (data, weight) = call.attrs, call.args
    layouts = str(attrs.data_layout), str(attrs.kernel_layout)
    if layouts != LAYOUTS[operator_name(call)] or str(attrs.out_layout) not in ("", layouts[0]):
        raise Refusal(f"layouts {layouts[0]}, {layouts[1]} are none of our kernel's")
    if any(str(value.ty.dtype) != "float32" for value in (data, weight, call)):
        raise Refusal("our kernel is for float32")
    if not isinstance(weight, tvm.ir.GenericConst):
        raise Refusal("its weight is no constant")
    shapes = [_static(value) for value in (data, weight, call)]
    (images, channels, *extents), (outputs, inputs, *window), (_, _, *places) = shapes
    padding = padding_of(call)
    groups = int(attrs.groups)
    if channels != inputs * groups:
        raise Refusal("its channels are not those of its weight")

    def two(numbers: Any, one: int) -> tuple[int, int]:
        first, second = [one, *map(int, numbers)][-2:]
        return first, second

    return ImageConvolution(
        images,
        groups,
        inputs,
        outputs // groups,
        two(extents, 1),
        two(places, 1),
        two(window, 1),
        two(attrs.strides, 1),
        two(padding, 0),
        two(attrs.dilation, 1),
    )


def _static(value: Any) -> list[int]:
    shape = shape_of(value)
    if shape is None or not is_static(shape):
        raise Refusal("its shapes are not static")
    if any(is_number(extent, 0) for extent in shape):
        raise Refusal("it has no elements")
    return list(shape)


def described(plan: ConvolutionPlan) -> str:
    """A plan in words."""
    tile = plan.tile
    words = [f"our kernel: tiles of {tile.rows} channels x {tile.places} places"]
    words += [f"{plan.splits} splits"] if plan.splits > 1 else []
    return ", ".join(words)


def lanes_of(places: Sequence[int]) -> int:
    """Neighbouring places of the result for which a thread evaluates an epilogue, or adds up splits, at once."""
    return heuristics.EPILOGUE_LANES if math.prod(places) % heuristics.EPILOGUE_LANES == 0 else 1


def has_barriers(config: StitchConfig, device: DeviceModel) -> bool:
    """Whether a kernel may have a barrier behind its divided sums."""
    return config.grid_barriers and device.cooperative


def added_up(splits: te.Tensor) -> te.Tensor:
    """The sum over the first axis, written out: threads that each add up one element read neighbours.

    A reduction over so few rows would be spread over lanes.
    """

    def summed(first: int, last: int, indices: Sequence[Any]) -> Any:
        if last - first == 1:
            return splits(first, *indices)
        middle = (first + last) // 2
        return summed(first, middle, indices) + summed(middle, last, indices)

    count, *shape = (int(extent) for extent in splits.shape)
    return te.compute(shape, lambda *indices: summed(0, count, indices), name="added_up")


class _Rewriter:
    def __init__(self, owner: OwnConvolutions):
        self.owner, self.device = owner, device_model(owner.target, owner.config)
        self.kernels: dict[KernelOf, Any] = {}
        self.weights: dict[tuple[Any, ConvolutionPlan, int], Any] = {}

    def replaced(self, builder: Any, call: Any, var: Any) -> Any:
        """What stands for a convolution that is bound to ``var``: itself, where another pass takes it."""
        try:
            convolution = image_convolution(call)
            plan = convolution_plan(convolution, self.device)
        except Refusal:
            return call  # the library's pass tells why that, or TVM, computes it
        self.owner.computed[f"{call.op.name.rpartition('.')[2]} {var.name}"] = described(plan)
        data, weight = call.args
        shape = _static(call)
        out = relax.TensorType([plan.splits, *shape] if plan.splits > 1 else shape, "float32")
        of = kernel_of(convolution, plan, len(shape) - 2)
        if of not in self.kernels:
            func = cuda_convolution(of).with_attr(CONVOLUTION_ATTR, of.numbers())
            self.kernels[of] = builder.add_func(func, "convolution")
        operands = relax.Tuple([data, self._packed(weight, convolution, plan)])
        made = relax.call_tir(self.kernels[of], operands, out)
        return made if plan.splits == 1 else builder.call_te(added_up, builder.emit(made))

    def _packed(self, weight: Any, convolution: ImageConvolution, plan: ConvolutionPlan) -> Any:
        """The weight as the kernel reads it: one constant for convolutions that share it."""
        key = weight, plan, convolution.groups
        if key not in self.weights:
            self.weights[key] = relax.const(packed_weight(weight.value.numpy(), convolution, plan))
        return self.weights[key]
