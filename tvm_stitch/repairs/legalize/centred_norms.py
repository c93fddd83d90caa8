# SPDX-License-Identifier: Apache-2.0
"""Group and instance norms, legalized with the variance as the mean of squared deviations.

A stitched kernel has the row on chip for the second pass. TVM's own reduction has two results, which stitching does
not take.

Fault: TVM sums ``x`` and ``x * x`` in one pass and subtracts the squared mean. Digits are lost if the mean is large
    compared to the deviations.
Seen in: TVM 0.27.0
Input: ``R.nn.group_norm`` of (2, 8, 40) float32 with values around 1000, target llvm
Upstream: https://github.com/apache/tvm/issues/19592
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te, topi


def _instance_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    x, gamma, beta = call.args
    rank = len(x.ty.shape)
    channel = int(call.attrs.channel_axis) % rank
    axes = [int(a) % rank for a in call.attrs.axes]
    return builder.call_te(
        normalized,
        x,
        gamma,
        beta,
        [channel],
        axes,
        float(call.attrs.epsilon),
        primfunc_name_hint="instance_norm",
    )


def _group_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    x, gamma, beta = call.args
    shape = list(x.ty.shape)
    channel = int(call.attrs.channel_axis) % len(shape)
    channels, groups = shape[channel], int(call.attrs.num_groups)
    if not isinstance(channels, tvm.tirx.IntImm):
        return call.op.get_attr("FLegalize")(builder, call)
    grouped = [*shape[:channel], groups, channels.value // groups, *shape[channel + 1 :]]
    axes = [int(a) % len(shape) for a in call.attrs.axes]
    norm = builder.emit_te(
        normalized,
        builder.emit_te(topi.reshape, x, grouped),
        gamma,
        beta,
        [channel, channel + 1],
        [channel + 1, *(a + (a > channel) for a in axes if a != channel)],
        float(call.attrs.epsilon),
        primfunc_name_hint="group_norm",
    )
    return builder.call_te(topi.reshape, norm, shape)


CENTRED_NORMS = {"relax.nn.group_norm": _group_norm, "relax.nn.instance_norm": _instance_norm}
"""Legalizations for ``LegalizeOps``. Group norms of a symbolic number of channels keep TVM's formula."""


def normalized(
    x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, channel: list[int], axes: list[int], epsilon: float
) -> te.Tensor:
    """Return ``(x - mean) * rsqrt(variance + epsilon) * gamma + beta``, computed in float32 for half types.

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
            positions = dict(zip([*kept, *axes], [*outer, *over]))
            return te.sum(term([positions[a] for a in range(len(x.shape))]), over)

        return te.compute([x.shape[a] for a in kept], total, name=name)

    def channel_of(index: Any) -> Any:
        position = index[channel[0]]
        for axis in channel[1:]:
            position = position * x.shape[axis] + index[axis]
        return position

    def scaled(*index: Any) -> Any:
        root = tvm.tirx.rsqrt(squares(*(index[a] for a in kept)) / count + tvm.tirx.const(epsilon, dtype))
        weight, offset = (v(channel_of(index)).astype(dtype) for v in (gamma, beta))
        return (deviation(index) * root * weight + offset).astype(x.dtype)

    sums = summed(lambda index: x(*index).astype(dtype), "x_sum")
    mean = te.compute(sums.shape, lambda *index: sums(*index) / count, name="x_mean")
    squares = summed(lambda index: deviation(index) * deviation(index), "x_var_sum")
    return te.compute(x.shape, scaled, name="T_norm")
