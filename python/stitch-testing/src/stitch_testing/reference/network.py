# SPDX-License-Identifier: Apache-2.0
"""Composite operators (softmax, norms, matmul) in NumPy, under Relax's names, for the float64 references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .operators import Kind, Operation, Rule, _ints, storage_dtype


def _softmax(operation: Operation, x: np.ndarray) -> np.ndarray:
    axis = int(operation.attrs.axis)
    exponential = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return exponential / np.sum(exponential, axis=axis, keepdims=True)


def _log_softmax(operation: Operation, x: np.ndarray) -> np.ndarray:
    axis = int(operation.attrs.axis)
    shifted = x - np.max(x, axis=axis, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


def _normalize(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    centred = x - np.mean(x, axis=axes, keepdims=True)
    return centred / np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True) + epsilon)


def _along(vector: np.ndarray, axes: tuple[int, ...], rank: int) -> np.ndarray:
    """Reshape ``vector``, whose dimensions are ``axes`` of a tensor of ``rank``, to broadcast over it."""
    shape = [1] * rank
    for size, axis in zip(vector.shape, axes, strict=True):
        shape[axis] = size
    return vector.reshape(shape)


def _scale_and_shift(
    operation: Operation, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, axes: tuple[int, ...]
) -> np.ndarray:
    if operation.attrs.scale:
        x = x * _along(gamma, axes, x.ndim)
    return x + _along(beta, axes, x.ndim) if operation.attrs.center else x


def _layer_norm(operation: Operation, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    axes = tuple(axis % x.ndim for axis in _ints(operation.attrs.axes))
    return _scale_and_shift(operation, _normalize(x, axes, float(operation.attrs.epsilon)), gamma, beta, axes)


def _instance_norm(operation: Operation, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    axes = tuple(axis % x.ndim for axis in _ints(operation.attrs.axes))
    channel = int(operation.attrs.channel_axis) % x.ndim
    return _scale_and_shift(
        operation, _normalize(x, axes, float(operation.attrs.epsilon)), gamma, beta, (channel,)
    )


def _group_norm(operation: Operation, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    channel, groups = int(operation.attrs.channel_axis) % x.ndim, int(operation.attrs.num_groups)
    axes = [axis % x.ndim for axis in _ints(operation.attrs.axes)]
    shape = (*x.shape[:channel], groups, x.shape[channel] // groups, *x.shape[channel + 1 :])
    # Splitting the channel axis moves it, and every axis behind it, by one position.
    reduced = (channel + 1, *(axis + (axis > channel) for axis in axes if axis != channel))
    normal = _normalize(x.reshape(shape), reduced, float(operation.attrs.epsilon)).reshape(x.shape)
    return _scale_and_shift(operation, normal, gamma, beta, (channel,))


def _batch_norm(
    operation: Operation,
    x: np.ndarray,
    gamma: np.ndarray,
    beta: np.ndarray,
    running_mean: np.ndarray,
    running_variance: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (y, running mean, running variance).

    Only training uses the batch's statistics and updates the running ones.
    """
    channel = int(operation.attrs.axis) % x.ndim
    axes = tuple(axis for axis in range(x.ndim) if axis != channel)
    mean, variance = running_mean, running_variance
    if operation.attrs.training:
        momentum = float(operation.attrs.momentum)
        mean, variance = np.mean(x, axis=axes), np.var(x, axis=axes)
        running_mean = (1 - momentum) * running_mean + momentum * mean
        running_variance = (1 - momentum) * running_variance + momentum * variance
    deviation = _along(np.sqrt(variance + float(operation.attrs.epsilon)), (channel,), x.ndim)
    normal = (x - _along(mean, (channel,), x.ndim)) / deviation
    return _scale_and_shift(operation, normal, gamma, beta, (channel,)), running_mean, running_variance


def _nll_loss(
    operation: Operation, predictions: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None
) -> np.ndarray:
    """Return the negative log-likelihood. Classes are axis 1, or axis 0 if there is no other."""
    axis = 1 if predictions.ndim > 1 else 0
    counted = targets != int(operation.attrs.ignore_index)
    safe = np.where(counted, targets, 0).astype(np.int64)
    picked = np.take_along_axis(predictions, np.expand_dims(safe, axis), axis).squeeze(axis)
    weight = np.where(counted, 1.0 if weights is None else weights[safe], 0.0)
    loss = -picked * weight
    if operation.attrs.reduction == "none":
        return loss
    total = np.asarray(np.sum(loss))
    return total / np.sum(weight) if operation.attrs.reduction == "mean" else total


def _rms_norm(operation: Operation, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    axes = tuple(axis % x.ndim for axis in _ints(operation.attrs.axes))
    mean_square = np.mean(x * x, axis=axes, keepdims=True)
    return x / np.sqrt(mean_square + float(operation.attrs.epsilon)) * _along(weight, axes, x.ndim)


def _multiplied(operation: Operation, *operands: np.ndarray) -> list[np.ndarray]:
    """Convert the operands of a matmul to the dtype of its result (``out_dtype``), in which it is summed up."""
    return [operand.astype(storage_dtype(operation.dtype), copy=False) for operand in operands]


def _matmul(operation: Operation, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.matmul(*_multiplied(operation, a, b))


def _conv2d(operation: Operation, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Convolve x <N, C, H, W> with weight <O, C/groups, KH, KW>. ``padding`` is one (before, after) an axis."""
    return _convolved(operation, x, weight, operation.attrs.padding)


def _nn_conv2d(operation: Operation, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Evaluate Relax's own convolution, whose ``padding`` is (top, left, bottom, right)."""
    if (operation.attrs.data_layout, operation.attrs.kernel_layout) != ("NCHW", "OIHW"):
        raise NotImplementedError(f"a convolution of {operation.attrs.data_layout}")
    top, left, bottom, right = _ints(operation.attrs.padding)
    return _convolved(operation, x, weight, [(top, bottom), (left, right)])


def _convolved(
    operation: Operation, x: np.ndarray, weight: np.ndarray, padding: Sequence[tuple[int, int]]
) -> np.ndarray:
    attrs = operation.attrs
    x, weight = _multiplied(operation, x, weight)
    x = np.pad(x, [(0, 0), (0, 0), *padding])
    dilation_h, dilation_w = _ints(attrs.dilation)
    reach = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], (dilation_h, dilation_w), strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, axis=(2, 3))
    down, right = _ints(attrs.strides)
    windows = windows[:, :, ::down, ::right, ::dilation_h, ::dilation_w]
    n, channels, height, width, *kernel = windows.shape
    windows = windows.reshape(n, attrs.groups, channels // attrs.groups, height, width, *kernel)
    grouped = weight.reshape(attrs.groups, -1, *weight.shape[1:])
    result = np.einsum("ngchwij,gocij->ngohw", windows, grouped, optimize=True)
    return result.reshape(n, -1, height, width)


def _dropout(operation: Operation, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the results of inference, which drops nothing."""
    return x, np.ones_like(x)


def _softplus(operation: Operation, x: np.ndarray) -> np.ndarray:
    beta = float(operation.attrs.beta)
    return np.logaddexp(0.0, beta * x) / beta


def _one_hot(operation: Operation, indices: np.ndarray, on: Any, off: Any) -> np.ndarray:
    axis, depth = int(operation.attrs.axis), int(operation.attrs.depth)
    hot = np.expand_dims(indices, axis) == _along(
        np.arange(depth), (axis % (indices.ndim + 1),), indices.ndim + 1
    )
    return np.where(hot, on, off).astype(storage_dtype(operation.dtype))


def _cross_entropy(operation: Operation, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return -np.sum(predictions * labels) / (predictions.shape[0] if predictions.ndim > 1 else 1)


RULES: dict[str, Rule] = {
    "nn.cross_entropy_with_logits": Rule(Kind.OTHER, _cross_entropy),
    "nn.softmax": Rule(Kind.OTHER, _softmax),
    "nn.log_softmax": Rule(Kind.OTHER, _log_softmax),
    "nn.layer_norm": Rule(Kind.OTHER, _layer_norm),
    "nn.instance_norm": Rule(Kind.OTHER, _instance_norm),
    "nn.group_norm": Rule(Kind.OTHER, _group_norm),
    "nn.batch_norm": Rule(Kind.OTHER, _batch_norm),
    "nn.nll_loss": Rule(Kind.OTHER, _nll_loss),
    "nn.rms_norm": Rule(Kind.OTHER, _rms_norm),
    "nn.dropout": Rule(Kind.OTHER, _dropout),
    "nn.softplus": Rule(Kind.OTHER, _softplus),
    "matmul": Rule(Kind.CONTRACT, _matmul),
    "conv2d": Rule(Kind.CONTRACT, _conv2d),
    "nn.conv2d": Rule(Kind.CONTRACT, _nn_conv2d),
    "one_hot": Rule(Kind.MOVE, _one_hot),
}
