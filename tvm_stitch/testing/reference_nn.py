# SPDX-License-Identifier: Apache-2.0
"""NumPy meanings of Relax's composite operators (softmax, norms, matmul), for the float64 reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from .reference_ops import Kind, Rule, _ints, dtype_of, storage_dtype


def _softmax(call: relax.Call, x: np.ndarray) -> np.ndarray:
    axis = int(call.attrs.axis)
    exponential = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return exponential / np.sum(exponential, axis=axis, keepdims=True)


def _log_softmax(call: relax.Call, x: np.ndarray) -> np.ndarray:
    axis = int(call.attrs.axis)
    shifted = x - np.max(x, axis=axis, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


def _normalize(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    centred = x - np.mean(x, axis=axes, keepdims=True)
    return centred / np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True) + epsilon)


def _along(vector: np.ndarray, axes: tuple[int, ...], rank: int) -> np.ndarray:
    """``vector``, whose dimensions are ``axes`` of a tensor of ``rank``, shaped to broadcast over it."""
    shape = [1] * rank
    for size, axis in zip(vector.shape, axes, strict=True):
        shape[axis] = size
    return vector.reshape(shape)


def _scale_and_shift(
    call: relax.Call, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, axes: tuple[int, ...]
) -> np.ndarray:
    if call.attrs.scale:
        x = x * _along(gamma, axes, x.ndim)
    return x + _along(beta, axes, x.ndim) if call.attrs.center else x


def _layer_norm(call: relax.Call, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    axes = tuple(axis % x.ndim for axis in _ints(call.attrs.axes))
    return _scale_and_shift(call, _normalize(x, axes, float(call.attrs.epsilon)), gamma, beta, axes)


def _instance_norm(call: relax.Call, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    axes = tuple(axis % x.ndim for axis in _ints(call.attrs.axes))
    channel = int(call.attrs.channel_axis) % x.ndim
    return _scale_and_shift(call, _normalize(x, axes, float(call.attrs.epsilon)), gamma, beta, (channel,))


def _group_norm(call: relax.Call, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    channel, groups = int(call.attrs.channel_axis) % x.ndim, int(call.attrs.num_groups)
    axes = [axis % x.ndim for axis in _ints(call.attrs.axes)]
    shape = (*x.shape[:channel], groups, x.shape[channel] // groups, *x.shape[channel + 1 :])
    # Splitting the channel axis moves it, and every axis behind it, one place on.
    reduced = (channel + 1, *(axis + (axis > channel) for axis in axes if axis != channel))
    normal = _normalize(x.reshape(shape), reduced, float(call.attrs.epsilon)).reshape(x.shape)
    return _scale_and_shift(call, normal, gamma, beta, (channel,))


def _rms_norm(call: relax.Call, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    axes = tuple(axis % x.ndim for axis in _ints(call.attrs.axes))
    mean_square = np.mean(x * x, axis=axes, keepdims=True)
    return x / np.sqrt(mean_square + float(call.attrs.epsilon)) * _along(weight, axes, x.ndim)


def _matmul(call: relax.Call, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.matmul(a, b).astype(storage_dtype(dtype_of(call)), copy=False)


def _dropout(call: relax.Call, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inference: nothing is dropped."""
    return x, np.ones_like(x)


def _softplus(call: relax.Call, x: np.ndarray) -> np.ndarray:
    beta = float(call.attrs.beta)
    return np.logaddexp(0.0, beta * x) / beta


def _one_hot(call: relax.Call, indices: np.ndarray, on: Any, off: Any) -> np.ndarray:
    axis, depth = int(call.attrs.axis), int(call.attrs.depth)
    hot = np.expand_dims(indices, axis) == _along(
        np.arange(depth), (axis % (indices.ndim + 1),), indices.ndim + 1
    )
    return np.where(hot, on, off).astype(storage_dtype(dtype_of(call)))


RULES: dict[str, Rule] = {
    "relax.nn.softmax": Rule(Kind.OTHER, _softmax),
    "relax.nn.log_softmax": Rule(Kind.OTHER, _log_softmax),
    "relax.nn.layer_norm": Rule(Kind.OTHER, _layer_norm),
    "relax.nn.instance_norm": Rule(Kind.OTHER, _instance_norm),
    "relax.nn.group_norm": Rule(Kind.OTHER, _group_norm),
    "relax.nn.rms_norm": Rule(Kind.OTHER, _rms_norm),
    "relax.nn.dropout": Rule(Kind.OTHER, _dropout),
    "relax.nn.softplus": Rule(Kind.OTHER, _softplus),
    "relax.matmul": Rule(Kind.OTHER, _matmul),
    "relax.one_hot": Rule(Kind.OTHER, _one_hot),
}
