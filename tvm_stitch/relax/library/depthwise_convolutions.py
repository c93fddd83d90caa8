# SPDX-License-Identifier: Apache-2.0
"""DepthwiseConvolutions: depthwise convolutions with channels last become calls of our own CUDA kernel.

Runs before :mod:`.convolutions`, which takes the others. Extents may be symbolic, but for the channels.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax import op as R

from ...compute.cuda.depthwise import TYPES, Depthwise, DepthwisePlan, cuda_depthwise, depthwise_plan
from ...support.failures import Refusal
from ...support.module_pass import module_pass
from ..rewriting.calls import with_bound_calls
from ..rewriting.compute_pass import ComputePass
from ..rewriting.views import has_elements, shape_of
from .calls import check_capability

LAYOUTS = {"relax.nn.conv1d": ("NWC", "OWI"), "relax.nn.conv2d": ("NHWC", "OHWI")}
"""The layouts of data and weight that the kernel takes."""


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
            plan = self._plan(convolution, call)
            self.computed[f"{call.op.name.rpartition('.')[2]} {var.name}"] = described(plan)
            if (convolution, plan) not in kernels:
                func = cuda_depthwise(convolution, plan)
                kernels[convolution, plan] = builder.add_func(func, "depthwise_convolution")
            data, weight = call.args
            taps = convolution.window[0] * convolution.window[1]
            lines = builder.emit(R.reshape(weight, (convolution.channels, taps)))
            by_tap = builder.emit(R.permute_dims(lines, [1, 0]))
            return relax.call_tir(kernels[convolution, plan], relax.Tuple([data, by_tap]), call.ty)

        return with_bound_calls(mod, LAYOUTS, replaced, why="our kernel is faster than the library's")

    def _plan(self, convolution: Depthwise, call: relax.Call) -> DepthwisePlan:
        images, *positions, _ = map(_number, shape_of(call) or ())
        return depthwise_plan(convolution, [1, *positions][-2:], images, self.device)

    def _depthwise(self, call: relax.Call) -> Depthwise:
        """Return the convolution that our kernel computes for a call.

        Raises:
            Refusal: if it does not compute the call.
        """
        attrs = call.attrs
        layouts = (str(attrs.data_layout), str(attrs.kernel_layout))
        if layouts != LAYOUTS[call.op.name] or str(attrs.out_layout) not in ("", layouts[0]):
            raise Refusal(f"layouts {layouts[0]}, {layouts[1]} are none of our kernel's")
        shapes = [shape_of(value) for value in (*call.args, call)]
        if any(shape is None for shape in shapes) or not has_elements(*call.args, call):
            raise Refusal("its shapes are not known, or it has no elements")
        data, weight, out = (str(value.ty.dtype) for value in (*call.args, call))
        if data != weight or data not in TYPES or out not in (data, "float32"):
            raise Refusal(f"a convolution of {data} and {weight} in {out} is none of our kernel's")
        check_capability(self.target, data)
        of_data, of_weight, of_result = (tuple(map(_number, shape or ())) for shape in shapes)
        channels = of_data[-1]
        if channels is None or not channels == of_weight[0] == of_result[-1] == int(attrs.groups):
            raise Refusal("it has no filter for each channel")
        if None in of_weight or of_weight[-1] != 1:
            raise Refusal("its filters have several channels, or a symbolic window")
        padding = [int(p) for p in attrs.padding]
        return Depthwise(
            len(of_data) - 2,
            channels,
            _two(of_weight[1:-1], 1),
            _two(attrs.strides, 1),
            _two(padding[: len(padding) // 2], 0),
            _two(attrs.dilation, 1),
            data,
            out,
        )


def described(plan: DepthwisePlan) -> str:
    """Return a plan in words."""
    return f"our kernel: depthwise, a thread has {plan.lanes} channels x {plan.across} positions"


def _number(extent: Any) -> int | None:
    return extent if isinstance(extent, int) else None


def _two(numbers: Any, outer: int) -> tuple[int, int]:
    first, second = [outer, *(int(n) for n in numbers)][-2:]
    return first, second
