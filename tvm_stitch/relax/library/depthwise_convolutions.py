# SPDX-License-Identifier: Apache-2.0
"""DepthwiseConvolutions: depthwise convolutions become calls of our own CUDA kernels.

Runs before :mod:`.convolutions`, which takes the others. Extents may be symbolic, but for the channels.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax
from tvm.relax import op as R

from ...compute.cuda.depthwise import (
    Depthwise,
    DepthwiseKernel,
    DepthwisePlan,
    RowsPlan,
    cuda_depthwise,
    depthwise_plan,
)
from ...compute.cuda.epilogue import EPILOGUES_ATTR
from ...compute.cuda.sources import ELEMENT_TYPES
from ...support.failures import Refusal
from ...support.module_pass import module_pass
from ..rewriting.calls import with_bound_calls
from ..rewriting.compute_pass import ComputePass
from ..rewriting.views import has_elements, shape_of
from .calls import check_capability
from .image_convolutions import two_axes

LAYOUTS = {
    ("relax.nn.conv1d", "NWC", "OWI"): False,
    ("relax.nn.conv1d", "NCW", "OIW"): True,
    ("relax.nn.conv2d", "NHWC", "OHWI"): False,
    ("relax.nn.conv2d", "NCHW", "OIHW"): True,
}
"""The operators and layouts of data and weight that the kernels take, and whether channels are first."""
DEPTHWISE_ATTR = "tvm_stitch.depthwise"
"""Attribute of a kernel: the parameters that it is compiled for, as text."""
OPERATORS = sorted({name for name, *_ in LAYOUTS})


@module_pass
class DepthwiseConvolutions(ComputePass):
    """Replace ``R.nn.conv1d`` and ``conv2d`` with a filter for each channel by our kernel.

    The module's decisions record what computes each of them. Other convolutions stay as they are.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        if self.config.compute_of("convolution") not in ("auto", "templates"):
            return mod
        kernels: dict[Any, Any] = {}

        def replaced(builder: relax.BlockBuilder, call: relax.Call, var: relax.Var) -> relax.Expr:
            try:
                convolution = self._depthwise(call)
            except Refusal:
                return call  # a later pass records what computes it
            kernel = DepthwiseKernel(convolution, self._plan(convolution, call))
            self.computed[call.op.name.rpartition(".")[2], var] = described(kernel.plan)
            if kernel not in kernels:
                func = cuda_depthwise(kernel, self.device.choices)
                func = func.with_attrs({DEPTHWISE_ATTR: kernel.text(), EPILOGUES_ATTR: True})
                kernels[kernel] = builder.add_func(func, "depthwise_convolution")
            data, weight = call.args
            taps = convolution.window[0] * convolution.window[1]
            lines = builder.emit(R.reshape(weight, (convolution.channels, taps)))
            if not convolution.channels_first:
                lines = builder.emit(R.permute_dims(lines, [1, 0]))
            return relax.call_tir(kernels[kernel], relax.Tuple([data, lines]), call.ty)

        return with_bound_calls(mod, OPERATORS, replaced, why="our kernel is faster than the library's")

    def _plan(self, convolution: Depthwise, call: relax.Call) -> DepthwisePlan | RowsPlan:
        images, *others = map(_number, shape_of(call) or ())
        positions = others[1:] if convolution.channels_first else others[:-1]
        return depthwise_plan(convolution, [1, *positions][-2:], images, self.device)

    def _depthwise(self, call: relax.Call) -> Depthwise:
        """Return the convolution that our kernel computes for a call.

        Raises:
            Refusal: if it does not compute the call.
        """
        attrs = call.attrs
        layouts = (str(attrs.data_layout), str(attrs.kernel_layout))
        first = LAYOUTS.get((call.op.name, *layouts))
        if first is None or str(attrs.out_layout) not in ("", layouts[0]):
            raise Refusal(f"layouts {layouts[0]}, {layouts[1]} are none of our kernel's")
        shapes = [shape_of(value) for value in (*call.args, call)]
        if any(shape is None for shape in shapes) or not has_elements(*call.args, call):
            raise Refusal("its shapes are not known, or it has no elements")
        data, weight, out = (str(value.ty.dtype) for value in (*call.args, call))
        if data != weight or data not in ELEMENT_TYPES or out not in (data, "float32"):
            raise Refusal(f"a convolution of {data} and {weight} in {out} is none of our kernel's")
        check_capability(self.target, data)
        of_data, of_weight, of_result = (tuple(map(_number, shape or ())) for shape in shapes)
        at = 1 if first else -1
        channels, inputs = of_data[at], of_weight[at]
        if channels is None or not channels == of_weight[0] == of_result[at] == int(attrs.groups):
            raise Refusal("it has no filter for each channel")
        if None in of_weight or inputs != 1:
            raise Refusal("its filters have several channels, or a symbolic window")
        if math.prod(n or 0 for n in of_weight[1:]) > self.device.choices.depthwise_taps:
            raise Refusal("its window is too large to write its loops out")
        window = two_axes([n or 0 for n in (of_weight[2:] if first else of_weight[1:-1])], 1)
        dilation, along = two_axes(attrs.dilation, 1), 0 if first else 1
        if (window[along] - 1) * dilation[along] > self.device.choices.depthwise_taps:
            raise Refusal("its dilated window is too long to write its loops out")
        padding = [int(p) for p in attrs.padding]
        return Depthwise(
            first,
            len(of_data) - 2,
            channels,
            window,
            two_axes(attrs.strides, 1),
            two_axes(padding[: len(padding) // 2], 0),
            dilation,
            data,
            out,
        )


def described(plan: DepthwisePlan | RowsPlan) -> str:
    """Return a plan in words."""
    if isinstance(plan, RowsPlan):
        return f"our kernel: depthwise, a thread has {plan.down} rows"
    return f"our kernel: depthwise, a thread has {plan.lanes} channels x {plan.across} positions"


def _number(extent: Any) -> int | None:
    return extent if isinstance(extent, int) else None
