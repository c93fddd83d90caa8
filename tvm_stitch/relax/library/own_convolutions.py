# SPDX-License-Identifier: Apache-2.0
"""OwnConvolutions: exact float32 convolutions of static shapes become calls of our own CUDA kernel.

Runs before :mod:`.convolutions`, which takes the others. If the kernel splits sums, the stitched kernel behind the
convolution adds them up, unless :mod:`.convolution_epilogues` finds that the convolution's kernel can. Constant
weights are packed when the model is compiled. A stitched kernel packs the weights of training.

The kernel also computes transposed convolutions of stride 1, with the reversed weight, and gradients of weights. The
window of these is as large as the result's gradient. They have few results, each a long sum to split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, te

from ...compute.cuda import library
from ...compute.cuda.convolution import FIRST_CAPABILITY, KernelOf, cuda_convolution, kernel_of, packed_weight
from ...compute.cuda.convolution_plan import ConvolutionPlan, convolution_plan
from ...config import StitchConfig
from ...cost.choices import Choices
from ...device import DeviceModel, device_model
from ...support.failures import Refusal
from ...support.module_pass import module_pass
from ...target import capability_of
from ..legalize.transposed_convolutions import SPATIAL
from ..rewriting.calls import with_bound_calls
from ..rewriting.compute_pass import ComputePass
from ..rewriting.operators import operator_name
from .image_convolutions import LAYOUTS, OwnConvolution, check_kernel, own_convolution
from .packed_weights import packed
from .weight_gradients import WeightGradient, WeightGradients

CONVOLUTION_ATTR = "tvm_stitch.convolution"
"""Attribute of a kernel: the parameters that it is compiled for, as numbers."""


@module_pass
class OwnConvolutions(ComputePass):
    """Replace ``R.nn.conv1d``, ``conv2d`` and transposed ones of static shape by our kernel, with the weight packed.

    The module's decisions record what computes each of them. Other convolutions stay as they are.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        asked = self.config.compute_of("convolution") in ("auto", "templates") and not self.config.tf32
        if not asked or capability_of(self.target) < FIRST_CAPABILITY:
            return mod
        rewriter = _Rewriter(self, mod)
        rewritten_module = with_bound_calls(
            mod, LAYOUTS, rewriter.replaced, why="our kernel is faster for exact float32 than a library"
        )
        return relax.transform.DeadCodeElimination()(rewritten_module) if rewriter.kernels else mod


def described(plan: ConvolutionPlan, convolution: OwnConvolution) -> str:
    """Return a plan in words."""
    tile = plan.tile
    words = [f"our kernel: tiles of {tile.rows} channels x {tile.positions} positions"]
    words += [f"{plan.splits} splits"] if plan.splits > 1 else []
    words += [convolution.title] if convolution.title else []
    return ", ".join(words)


def lanes_of(positions: Sequence[int], choices: Choices) -> int:
    """Return for how many neighbouring positions a thread evaluates an epilogue, or adds up splits, at once."""
    return choices.epilogue_lanes if math.prod(positions) % choices.epilogue_lanes == 0 else 1


def has_barriers(config: StitchConfig, device: DeviceModel) -> bool:
    """Return whether a kernel may have a barrier behind its split sums."""
    return config.grid_barriers and device.cooperative


def added_up(splits: te.Tensor) -> te.Tensor:
    """Compute the sum over the first axis, written out, so that threads that each add up one element read neighbours.

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
    def __init__(self, owner: OwnConvolutions, mod: tvm.IRModule):
        self.owner = owner
        self.device = device_model(owner.target, owner.config).configured(owner.config)
        self.gradients = WeightGradients(mod)
        self.kernels: dict[KernelOf, Any] = {}
        self.weights: dict[tuple[Any, ConvolutionPlan, int], Any] = {}

    def replaced(self, builder: relax.BlockBuilder, call: relax.Call, var: relax.Var) -> relax.Expr:
        """Return the replacement of a convolution that is bound to ``var``, or the call if another pass takes it."""
        try:
            check_kernel(call)
            gradient = self._gradient(builder, call, var)
            if gradient is not None and gradient.is_transformed and self._has_library():
                raise Refusal("the library's transforms take half the time")
            convolution = own_convolution(call, gradient, self.device.choices)
            plan = convolution_plan(convolution.convolution, self.device)
        except Refusal:
            return call  # the library's pass records why it, or TVM, computes the call
        self.owner.computed[call.op.name.rpartition(".")[2], var] = described(plan, convolution)
        of = kernel_of(convolution.convolution, plan, len(convolution.shape) - 2)
        if of not in self.kernels:
            func = cuda_convolution(of, self.device.choices).with_attr(CONVOLUTION_ATTR, of.numbers())
            self.kernels[of] = builder.add_func(func, "convolution")
        weight = (
            self._constant(convolution, plan)
            if convolution.is_constant
            else packed(builder, convolution, plan)
        )
        out = relax.TensorType(
            [plan.splits, *convolution.shape] if plan.splits > 1 else convolution.shape, "float32"
        )
        result = relax.call_tir(self.kernels[of], relax.Tuple([convolution.data, weight]), out)
        return result if plan.splits == 1 else builder.call_te(added_up, builder.emit(result))

    def _has_library(self) -> bool:
        config = self.owner.config
        return config.compute_of("convolution") == "auto" and library.why_not(library.CUDNN, config) is None

    def _gradient(
        self, builder: relax.BlockBuilder, call: relax.Call, var: relax.Var
    ) -> WeightGradient | None:
        """Return the weight's gradient that a call computes, if it is one, else None."""
        if operator_name(call) in SPATIAL or isinstance(call.args[1], tvm.ir.GenericConst):
            return None
        return self.gradients.found(builder, call, var)

    def _constant(self, convolution: OwnConvolution, plan: ConvolutionPlan) -> Any:
        """Return the weight in the kernel's layout: one constant for all convolutions that share it."""
        key = convolution.weight, plan, convolution.convolution.groups
        if key not in self.weights:
            weight = convolution.weight.value.numpy()
            self.weights[key] = relax.const(packed_weight(weight, convolution.convolution, plan))
        return self.weights[key]
