# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch's training graphs for TVM's importer: gradients of convolutions, and what norms keep for theirs.

A graph that AOTAutograd traced forward and backward reads the mean and the deviation that a norm has computed. TVM's
importer gives the norm's result, or zeros, in their place and says nothing; of a convolution's gradient it has none.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax
from tvm.relax import op as R

Converter = Callable[[Any, Any], Any]
"""Of a node of PyTorch's graph, and the importer."""


def backward_converters() -> dict[str, Converter]:
    """Converters for graphs with their backward: ``from_exported_program(program, custom_convert_map=...)``.

    Raises (the import):
        ValueError: for the gradient of a convolution that is transposed, has groups, or is not two-dimensional.
    """
    return {
        "native_layer_norm.default": _layer_norm,
        "_native_batch_norm_legit.no_stats": _batch_norm,
        "_native_batch_norm_legit_functional.default": _running_batch_norm,
        "convolution_backward.default": _convolution_backward,
    }


def _results_read(node: Any) -> set[int]:
    """The numbers of a node's results that other nodes read."""
    return {user.args[1] for user in node.users if user.target is operator.getitem}


def _operand(node: Any, importer: Any, at: int) -> Any:
    """A tensor that a node reads; None where it has none there."""
    given = node.args[at] if at < len(node.args) else None
    return None if given is None else importer.env[given]


def _number(node: Any, at: int, otherwise: float) -> float:
    """A number that a node is given."""
    return float(node.args[at]) if at < len(node.args) else otherwise


def _constant(value: float, like: Any) -> Any:
    return relax.const(value, str(like.ty.dtype.dtype))


def _moments(emit: Callable[[Any], Any], x: Any, axes: Sequence[int], epsilon: float) -> tuple[Any, Any, Any]:
    """Mean, variance and the deviation's reciprocal along some axes, which stay with an extent of 1."""
    mean = emit(R.mean(x, list(axes), keepdims=True))
    centred = emit(R.subtract(x, mean))
    variance = emit(R.mean(emit(R.multiply(centred, centred)), list(axes), keepdims=True))
    return mean, variance, emit(R.rsqrt(emit(R.add(variance, _constant(epsilon, x)))))


def _layer_norm(node: Any, importer: Any) -> Any:
    """(input, normalized_shape, weight, bias, eps) -> (output, mean, rstd), these two with extents of 1."""
    output = importer._native_layer_norm(node)
    if not _results_read(node) & {1, 2}:
        return output
    x = importer.env[node.args[0]]
    axes = range(-len(node.args[1]), 0)
    mean, _, reciprocal = _moments(importer.block_builder.emit, x, axes, _number(node, 4, 1e-5))
    return relax.Tuple([output, mean, reciprocal])


def _channel_moments(node: Any, importer: Any, epsilon: float) -> tuple[Any, Any, Any]:
    """Mean, variance and the deviation's reciprocal of each channel: three vectors."""
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    axes = [axis for axis in range(len(x.ty.shape)) if axis != 1]
    mean, variance, reciprocal = (emit(R.squeeze(v, axes)) for v in _moments(emit, x, axes, epsilon))
    return mean, variance, reciprocal


def _batch_norm(node: Any, importer: Any) -> Any:
    """(input, weight, bias, training, momentum, eps) -> (output, mean, rstd), these two for each channel."""
    output = importer._batch_norm_legit_no_stats(node)
    if not _results_read(node) & {1, 2}:
        return output
    mean, _, reciprocal = _channel_moments(node, importer, _number(node, 5, 1e-5))
    return relax.Tuple([output, mean, reciprocal])


def _running_batch_norm(node: Any, importer: Any) -> Any:
    """(input, weight, bias, running mean, running variance, training, momentum, eps) -> the same and new running ones.

    The new running variance is of the unbiased variance.
    """
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    momentum, epsilon = _number(node, 6, 0.1), _number(node, 7, 1e-5)
    mean, variance, reciprocal = _channel_moments(node, importer, epsilon)
    shape = [1, -1, *[1] * (len(x.ty.shape) - 2)]

    def spread(vector: Any) -> Any:
        return emit(R.reshape(vector, shape))

    output = emit(R.multiply(emit(R.subtract(x, spread(mean))), spread(reciprocal)))
    for at, join in ((1, R.multiply), (2, R.add)):
        if (vector := _operand(node, importer, at)) is not None:
            output = emit(join(output, spread(vector)))
    count = math.prod(int(e) for i, e in enumerate(x.ty.shape) if i != 1)
    unbiased = emit(R.multiply(variance, _constant(count / max(count - 1, 1), x)))

    def moved(at: int, new: Any) -> Any:
        old = emit(R.multiply(importer.env[node.args[at]], _constant(1 - momentum, x)))
        return emit(R.add(old, emit(R.multiply(new, _constant(momentum, x)))))

    return relax.Tuple([output, mean, reciprocal, moved(3, mean), moved(4, unbiased)])


def _convolution_backward(node: Any, importer: Any) -> Any:
    """(grad, input, weight, bias sizes, stride, padding, dilation, transposed, ..., groups, mask) -> three gradients.

    By the input the gradient is a transposed convolution of ``grad`` with the weights; by the weights it is the
    convolution of the input with ``grad`` as weights, batch and channels exchanged, strides and dilations too.
    """
    emit = importer.block_builder.emit
    grad, x, weight = (importer.env[arg] for arg in node.args[:3])
    stride, padding, dilation, transposed, _, groups, mask = node.args[4:11]
    if transposed or groups != 1 or len(x.ty.shape) != 4:
        raise ValueError(
            f"{node.name} is the gradient of a convolution that is transposed, has groups, or is not two-dimensional: "
            "decompose convolution_backward when the graph is traced"
        )
    strides, paddings, dilations = ([int(e) for e in _pair(given)] for given in (stride, padding, dilation))
    size, kernel = ([int(e) for e in tensor.ty.shape][2:] for tensor in (x, weight))
    by_input = by_weight = by_bias = None
    if mask[0]:
        rest = [
            (extent + 2 * p - d * (k - 1) - 1) % s
            for extent, p, d, k, s in zip(size, paddings, dilations, kernel, strides)
        ]
        by_input = emit(
            R.nn.conv2d_transpose(
                grad, weight, strides=strides, padding=paddings, output_padding=rest, dilation=dilations,
                data_layout="NCHW", kernel_layout="IOHW",
            )
        )  # fmt: skip
    if mask[1]:
        exchanged = [emit(R.permute_dims(tensor, [1, 0, 2, 3])) for tensor in (x, grad)]
        found = emit(
            R.nn.conv2d(*exchanged, strides=dilations, padding=paddings, dilation=strides, data_layout="NCHW")
        )
        # Rows and columns that no whole stride reaches give elements beyond the kernel.
        cut = emit(R.strided_slice(found, [2, 3], [0, 0], kernel))
        by_weight = emit(R.permute_dims(cut, [1, 0, 2, 3]))
    if mask[2]:
        by_bias = emit(R.sum(grad, [0, 2, 3]))
    return [by_input, by_weight, by_bias]


def _pair(given: Sequence[int]) -> Sequence[int]:
    """PyTorch gives one number for both axes, or two."""
    return [*given] * 2 if len(given) == 1 else given
