# SPDX-License-Identifier: Apache-2.0
"""CentredNorms: group and instance norms whose variance is the mean of squared deviations from the mean.

TVM's own sum ``x`` and ``x * x`` in one reduction of two results, which is not stitched, and subtract the squared mean:
digits are lost where the mean is large beside the deviations. A stitched kernel has the row on chip for a second pass.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te

from ..interrupts import carrying
from .functions import own_functions
from .operators import operator_name

_GROUP_NORM = "relax.nn.group_norm"
_INSTANCE_NORM = "relax.nn.instance_norm"


@tvm.transform.module_pass(opt_level=0, name="CentredNorms")
class CentredNorms:
    """Replace group and instance norms of a known rank and number of channels by PrimFuncs of one-result reductions.

    Half types are computed in float32. Runs before ``LegalizeOps``, whose formula others keep.
    """

    @carrying
    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite the Relax functions that have such calls."""
        rewriter = _Mutator(mod)
        for gvar, func in own_functions(mod):
            rewriter.builder_.update_func(gvar, rewriter.visit_expr(func))
        return rewriter.builder_.get()


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def visit_call_(self, call: Any) -> Any:  # pylint: disable=arguments-renamed
        call = super().visit_call_(call)
        name = operator_name(call)
        if name not in (_GROUP_NORM, _INSTANCE_NORM):
            return call
        x, gamma, beta = call.args
        if not isinstance(getattr(x.ty, "shape", None), relax.ShapeExpr):
            return call
        shape = list(x.ty.shape)
        rank = len(shape)
        channel = int(call.attrs.channel_axis) % rank
        axes = [int(a) % rank for a in call.attrs.axes]
        epsilon = float(call.attrs.epsilon)
        if name == _INSTANCE_NORM:
            return self.builder_.call_te(
                normalized, x, gamma, beta, [channel], axes, epsilon, primfunc_name_hint="instance_norm"
            )
        channels, groups = shape[channel], int(call.attrs.num_groups)
        if not isinstance(channels, tvm.tirx.IntImm):
            return call
        grouped = [*shape[:channel], groups, channels.value // groups, *shape[channel + 1 :]]
        axes = [channel + 1, *(a + (a > channel) for a in axes if a != channel)]
        norm = self.builder_.call_te(
            normalized,
            self.builder_.emit(relax.op.reshape(x, grouped)),
            gamma,
            beta,
            [channel, channel + 1],
            axes,
            epsilon,
            primfunc_name_hint="group_norm",
        )
        return relax.op.reshape(self.builder_.emit(norm), shape)


def normalized(
    x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, channel: list[int], axes: list[int], epsilon: float
) -> te.Tensor:
    """``(x - mean) * rsqrt(variance + epsilon) * gamma + beta``, computed in float32 for half types.

    Args:
        x: a tensor of float type.
        gamma: ``(channels,)``.
        beta: ``(channels,)``.
        channel: the axes of ``x`` whose indices together are the channel.
        axes: those that mean and variance are taken over.
        epsilon: added to the variance.

    Returns:
        A tensor of the shape and dtype of ``x``.
    """
    dtype = "float64" if x.dtype == "float64" else "float32"
    kept = [a for a in range(len(x.shape)) if a not in axes]
    count = tvm.tirx.const(1, "int64")
    for axis in axes:
        count = count * x.shape[axis]
    count = count.astype(dtype)

    def deviation(index: Any) -> Any:
        return x(*index).astype(dtype) - mean(*(index[a] for a in kept))

    def summed(term: Any, name: str) -> te.Tensor:
        over = [te.reduce_axis((0, x.shape[a]), f"k{a}") for a in axes]

        def total(*outer: Any) -> Any:
            places = dict(zip([*kept, *axes], [*outer, *over]))
            return te.sum(term([places[a] for a in range(len(x.shape))]), over)

        return te.compute([x.shape[a] for a in kept], total, name=name)

    def channel_of(index: Any) -> Any:
        place = index[channel[0]]
        for axis in channel[1:]:
            place = place * x.shape[axis] + index[axis]
        return place

    def scaled(*index: Any) -> Any:
        root = tvm.tirx.rsqrt(squares(*(index[a] for a in kept)) / count + tvm.tirx.const(epsilon, dtype))
        weight, offset = (v(channel_of(index)).astype(dtype) for v in (gamma, beta))
        return (deviation(index) * root * weight + offset).astype(x.dtype)

    sums = summed(lambda index: x(*index).astype(dtype), "x_sum")
    mean = te.compute(sums.shape, lambda *index: sums(*index) / count, name="x_mean")
    squares = summed(lambda index: deviation(index) * deviation(index), "x_var_sum")
    return te.compute(x.shape, scaled, name="T_norm")
