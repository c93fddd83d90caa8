# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch's training graphs for TVM's importer: gradients of convolutions, of SiLU and of Mish, and
results of norms for them.

A graph that AOTAutograd traced forward and backward reads the mean and the deviation that a norm has computed.
TVM's importer silently returns the norm's result, or zeros, instead. It has no gradient of a convolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.relax import op as R

from .core import Converter, results_read


def backward_converters() -> dict[str, Converter]:
    """Return the converters for graphs with a backward pass, for ``from_exported_program(...,
    custom_convert_map=...)``.
    """
    return {
        "native_layer_norm.default": _layer_norm,
        "native_group_norm.default": _group_norm,
        "_native_batch_norm_legit.no_stats": _batch_norm,
        "_native_batch_norm_legit_functional.default": _running_batch_norm,
        "convolution_backward.default": _convolution_backward,
        "silu_backward.default": _silu_backward,
        "mish_backward.default": _mish_backward,
    }


def _operand(node: Any, importer: Any, at: int) -> Any:
    """Return the tensor at a position of a node's arguments, or None if there is none."""
    given = node.args[at] if at < len(node.args) else None
    return None if given is None else importer.env[given]


def number(node: Any, at: int, otherwise: float) -> float:
    """Return the number at a position of a node's arguments, or ``otherwise``."""
    return float(node.args[at]) if at < len(node.args) else otherwise


def constant(value: float, like: Any) -> Any:
    return relax.const(value, str(like.ty.dtype.dtype))


def _moments(emit: Callable[[Any], Any], x: Any, axes: Sequence[int], epsilon: float) -> tuple[Any, Any, Any]:
    """Return mean, variance and the deviation's reciprocal along axes, which are kept with an extent of 1."""
    mean = emit(R.mean(x, list(axes), keepdims=True))
    centred = emit(R.subtract(x, mean))
    variance = emit(R.mean(emit(R.multiply(centred, centred)), list(axes), keepdims=True))
    return mean, variance, emit(R.rsqrt(emit(R.add(variance, constant(epsilon, x)))))


def _layer_norm(node: Any, importer: Any) -> Any:
    """(input, normalized_shape, weight, bias, eps) -> (output, mean, rstd), the latter two with extents of 1.

    TVM has no layer norm of float64.
    """
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    of_its_own = str(x.ty.dtype.dtype) == "float64"
    output = None if of_its_own else importer._native_layer_norm(node)
    if not of_its_own and not results_read(node) & {1, 2}:
        return output
    mean, _, reciprocal = _moments(emit, x, range(-len(node.args[1]), 0), number(node, 4, 1e-5))
    if of_its_own:
        output = emit(R.multiply(emit(R.subtract(x, mean)), reciprocal))
        for combine, at in ((R.multiply, 2), (R.add, 3)):
            if (operand := _operand(node, importer, at)) is not None:
                output = emit(combine(output, operand))
    return relax.Tuple([output, mean, reciprocal])


def _group_norm(node: Any, importer: Any) -> Any:
    """(input, weight, bias, N, C, HxW, groups, eps) -> (output, mean, rstd), the latter two <N, groups>.

    TVM's importer needs weight and bias, but a norm need not have them.
    """
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    groups, epsilon = int(node.args[6]), number(node, 7, 1e-5)
    images, channels = list(x.ty.shape)[:2]
    given = str(x.ty.dtype.dtype)
    weight, bias = (_operand(node, importer, at) for at in (1, 2))
    dtype = "float32" if given == "bfloat16" else given  # TVM has no group norm of bfloat16
    x, weight, bias = (
        each if each is None or dtype == given else emit(R.astype(each, dtype)) for each in (x, weight, bias)
    )
    output = emit(
        R.nn.group_norm(
            x,
            emit(R.ones([channels], dtype)) if weight is None else weight,
            emit(R.zeros([channels], dtype)) if bias is None else bias,
            num_groups=groups,
            channel_axis=1,
            axes=list(range(2, len(x.ty.shape))),
            epsilon=epsilon,
        )
    )
    if dtype != given:
        output = emit(R.astype(output, given))
    if not results_read(node) & {1, 2}:
        return relax.Tuple([output])
    grouped = emit(R.reshape(x, [images, groups, -1]))
    mean, _, reciprocal = _moments(emit, grouped, [2], epsilon)
    return relax.Tuple([output, *(emit(R.squeeze(v, [2])) for v in (mean, reciprocal))])


def _channel_moments(node: Any, importer: Any, epsilon: float) -> tuple[Any, Any, Any]:
    """Return mean, variance and the deviation's reciprocal of each channel: three vectors."""
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    axes = [axis for axis in range(len(x.ty.shape)) if axis != 1]
    mean, variance, reciprocal = (emit(R.squeeze(v, axes)) for v in _moments(emit, x, axes, epsilon))
    return mean, variance, reciprocal


def _batch_norm(node: Any, importer: Any) -> Any:
    """(input, weight, bias, training, momentum, eps) -> (output, mean, rstd), the latter two for each channel."""
    output = importer._batch_norm_legit_no_stats(node)
    if not results_read(node) & {1, 2}:
        return output
    mean, _, reciprocal = _channel_moments(node, importer, number(node, 5, 1e-5))
    return relax.Tuple([output, mean, reciprocal])


def _running_batch_norm(node: Any, importer: Any) -> Any:
    """(input, weight, bias, running mean, running variance, training, momentum, eps) -> the same and new running
    ones.

    The new running variance uses the unbiased variance.
    """
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    momentum, epsilon = number(node, 6, 0.1), number(node, 7, 1e-5)
    mean, variance, reciprocal = _channel_moments(node, importer, epsilon)
    shape = [1, -1, *[1] * (len(x.ty.shape) - 2)]

    def spread(vector: Any) -> Any:
        return emit(R.reshape(vector, shape))

    output = emit(R.multiply(emit(R.subtract(x, spread(mean))), spread(reciprocal)))
    for at, join in ((1, R.multiply), (2, R.add)):
        if (vector := _operand(node, importer, at)) is not None:
            output = emit(join(output, spread(vector)))
    count = math.prod(int(e) for i, e in enumerate(x.ty.shape) if i != 1)
    unbiased = emit(R.multiply(variance, constant(count / max(count - 1, 1), x)))

    def moved(at: int, new: Any) -> Any:
        old = emit(R.multiply(importer.env[node.args[at]], constant(1 - momentum, x)))
        return emit(R.add(old, emit(R.multiply(new, constant(momentum, x)))))

    return relax.Tuple([output, mean, reciprocal, moved(3, mean), moved(4, unbiased)])


def _silu_backward(node: Any, importer: Any) -> Any:
    """(grad, input) -> the gradient of ``x * sigmoid(x)``. PyTorch leaves it whole when it decomposes a program."""
    emit = importer.block_builder.emit
    grad, x = (importer.env[arg] for arg in node.args[:2])
    sigmoid = emit(R.sigmoid(x))
    rest = emit(R.multiply(x, emit(R.subtract(constant(1.0, x), sigmoid))))
    slope = emit(R.multiply(sigmoid, emit(R.add(constant(1.0, x), rest))))
    return emit(R.multiply(grad, slope))


def _mish_backward(node: Any, importer: Any) -> Any:
    """(grad, input) -> the gradient of ``x * tanh(softplus(x))``, which PyTorch leaves whole too."""
    emit = importer.block_builder.emit
    grad, x = (importer.env[arg] for arg in node.args[:2])
    tanh = emit(R.tanh(emit(R.nn.softplus(x))))
    square = emit(R.multiply(tanh, tanh))
    inner = emit(R.multiply(emit(R.sigmoid(x)), emit(R.subtract(constant(1.0, x), square))))
    return emit(R.multiply(grad, emit(R.add(tanh, emit(R.multiply(x, inner))))))


SPATIAL = {1: "W", 2: "HW", 3: "DHW"}
"""Names of spatial axes by their number."""


def _convolution_backward(node: Any, importer: Any) -> Any:
    """(grad, input, weight, bias sizes, stride, padding, dilation, transposed, output padding, groups, mask) ->
    three.

    A convolution and the transposed one of the same weights are adjoint: each is the other's gradient by the input.
    Their gradients by the weights are the same, with input and ``grad`` exchanged.
    """
    emit = importer.block_builder.emit
    grad, x, weight = (importer.env[arg] for arg in node.args[:3])
    stride, padding, dilation, transposed, _, groups, mask = node.args[4:11]
    rank = len(x.ty.shape) - 2
    # PyTorch passes one number for all axes, or one for each.
    each = ([*given] * rank if len(given) == 1 else given for given in (stride, padding, dilation))
    stride, padding, dilation = ([int(e) for e in given] for given in each)
    window = _Window(emit, stride, padding, dilation, int(groups))
    by_input = by_weight = by_bias = None
    if mask[0]:
        adjoint = window.convolved if transposed else window.transposed
        by_input = adjoint(grad, weight, list(x.ty.shape)[2:])
    if mask[1]:
        large, small = (grad, x) if transposed else (x, grad)
        by_weight = window.by_weight(large, small, list(weight.ty.shape)[2:])
    if mask[2]:
        by_bias = emit(R.sum(grad, [axis for axis in range(rank + 2) if axis != 1]))
    return [by_input, by_weight, by_bias]


@dataclass(frozen=True)
class _Window:
    """The movement of a convolution's window over its larger side, whichever side is its input."""

    emit: Callable[[Any], Any]
    strides: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    def convolved(self, large: Any, weight: Any, extents: Sequence[Any]) -> Any:
        """<N, G * I, ...> with <G * O, I, ...> -> <N, G * O, *extents>."""
        result = self._convolution(large, weight, self.strides, self.dilation)
        return self._cut(result, extents)  # an output padding of a stride or more adds elements at the end

    def transposed(self, small: Any, weight: Any, extents: Sequence[Any]) -> Any:
        """<N, G * O, ...> with <G * O, I, ...> -> <N, G * I, *extents>."""
        spatial = SPATIAL[len(self.strides)]
        kernel = [int(e) for e in list(weight.ty.shape)[2:]]
        rest = [
            (int(extent) + 2 * p - d * (k - 1) - 1) % s
            for extent, p, d, k, s in zip(extents, self.padding, self.dilation, kernel, self.strides)
        ]
        function = getattr(R.nn, f"conv{len(spatial)}d_transpose")
        return self.emit(
            function(
                small, weight, strides=self.strides, padding=self.padding, output_padding=rest, dilation=self.dilation,
                groups=self.groups, data_layout=f"NC{spatial}", kernel_layout=f"IO{spatial}",
            )
        )  # fmt: skip

    def by_weight(self, large: Any, small: Any, kernel: Sequence[Any]) -> Any:
        """<N, G * I, ...> and <N, G * O, ...> -> <G * O, I, *kernel>.

        It is the convolution of the larger side with the smaller one as weights, with strides and dilations
        exchanged. The images become the channels of each group, and the channels of a group become images.
        """
        images, channels, *extents = large.ty.shape
        spatial = range(2, 2 + len(extents))
        if self.groups == 1:
            data = self.emit(R.permute_dims(large, [1, 0, *spatial]))
        else:
            inside = int(channels) // self.groups
            grouped = self.emit(R.reshape(large, [images, self.groups, inside, *extents]))
            transposed = self.emit(R.permute_dims(grouped, [2, 1, 0, *(axis + 1 for axis in spatial)]))
            data = self.emit(R.reshape(transposed, [inside, self.groups * images, *extents]))
        weights = self.emit(R.permute_dims(small, [1, 0, *spatial]))
        result = self._convolution(data, weights, self.dilation, self.strides)
        # Positions that no whole stride reaches add elements beyond the kernel.
        return self.emit(R.permute_dims(self._cut(result, kernel), [1, 0, *spatial]))

    def _convolution(self, data: Any, weight: Any, strides: list[int], dilation: list[int]) -> Any:
        spatial = SPATIAL[len(strides)]
        function = getattr(R.nn, f"conv{len(spatial)}d")
        return self.emit(
            function(
                data, weight, strides=strides, padding=self.padding, dilation=dilation, groups=self.groups,
                data_layout=f"NC{spatial}", kernel_layout=f"OI{spatial}",
            )
        )  # fmt: skip

    def _cut(self, value: Any, extents: Sequence[Any]) -> Any:
        """Return the first elements along the spatial axes."""
        axes = list(range(2, 2 + len(extents)))
        return self.emit(R.strided_slice(value, axes, [0] * len(axes), [int(e) for e in extents]))
