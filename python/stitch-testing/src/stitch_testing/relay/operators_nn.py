# SPDX-License-Identifier: Apache-2.0
"""Rules of Relay's ``nn`` operators. Composite operators are composed of others, so that they have bounds as well."""

from __future__ import annotations

from typing import Any

from tvm import relay

from .operators import Calculator, Translation, dtype_of, ints

TRANSLATIONS: dict[str, Translation] = {}


def _nn(*names: str) -> Any:
    def register(function: Translation) -> Translation:
        TRANSLATIONS.update({f"nn.{name}": function for name in names})
        return function

    return register


def _shifted(calculator: Calculator, call: relay.Call, x: Any) -> tuple[int, Any]:
    """Return the axis, and ``x`` minus its greatest element along it."""
    axis, dtype = int(call.attrs.axis), dtype_of(call)
    return axis, calculator.do("subtract", dtype, x, calculator.do("max", dtype, x, axis=axis, keepdims=True))


@_nn("softmax")
def _softmax(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    dtype = dtype_of(call)
    axis, shifted = _shifted(calculator, call, args[0])
    exponential = calculator.do("exp", dtype, shifted)
    total = calculator.do("sum", dtype, exponential, axis=axis, keepdims=True)
    return calculator.do("divide", dtype, exponential, total)


@_nn("log_softmax")
def _log_softmax(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    dtype = dtype_of(call)
    axis, shifted = _shifted(calculator, call, args[0])
    total = calculator.do("sum", dtype, calculator.do("exp", dtype, shifted), axis=axis, keepdims=True)
    return calculator.do("subtract", dtype, shifted, calculator.do("log", dtype, total))


def _along(calculator: Calculator, vector: Any, axis: int, rank: int, dtype: str) -> Any:
    """Reshape ``vector``, which has ``axis`` of a tensor of ``rank``, to broadcast over it."""
    (extent,) = calculator.shape(vector)
    shape = [1] * rank
    shape[axis] = extent
    return calculator.do("reshape", dtype, vector, tuple(shape))


def _scaled(calculator: Calculator, call: relay.Call, x: Any, gamma: Any, beta: Any, dtype: str) -> Any:
    """Return ``x`` times gamma plus beta, each only if the operator's attributes select it."""
    rank = len(calculator.shape(x))
    axis = int(call.attrs.axis) % rank
    if call.attrs.scale:
        x = calculator.do("multiply", dtype, x, _along(calculator, gamma, axis, rank, dtype))
    if call.attrs.center:
        x = calculator.do("add", dtype, x, _along(calculator, beta, axis, rank, dtype))
    return x


def _divided(calculator: Calculator, centred: Any, variance: Any, epsilon: float, dtype: str) -> Any:
    safe = calculator.do("add", dtype, variance, calculator.constant(epsilon, "float64"))
    return calculator.do("multiply", dtype, centred, calculator.do("rsqrt", dtype, safe))


def _normal(calculator: Calculator, x: Any, axes: list[int], epsilon: float, dtype: str) -> Any:
    mean = calculator.do("mean", dtype, x, axis=axes, keepdims=True)
    centred = calculator.do("subtract", dtype, x, mean)
    square = calculator.do("multiply", dtype, centred, centred)
    variance = calculator.do("mean", dtype, square, axis=axes, keepdims=True)
    return _divided(calculator, centred, variance, epsilon, dtype)


@_nn("layer_norm")
def _layer_norm(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    (x, gamma, beta), dtype = args, dtype_of(call)
    axis = int(call.attrs.axis) % len(calculator.shape(x))
    return _scaled(
        calculator, call, _normal(calculator, x, [axis], call.attrs.epsilon, dtype), gamma, beta, dtype
    )


@_nn("instance_norm")
def _instance_norm(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    (x, gamma, beta), dtype = args, dtype_of(call)
    rank = len(calculator.shape(x))
    axes = [axis for axis in range(1, rank) if axis != int(call.attrs.axis) % rank]
    return _scaled(
        calculator, call, _normal(calculator, x, axes, call.attrs.epsilon, dtype), gamma, beta, dtype
    )


@_nn("group_norm")
def _group_norm(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    (x, gamma, beta), dtype = args, dtype_of(call)
    shape, groups = calculator.shape(x), int(call.attrs.num_groups)
    channel = int(call.attrs.axis) % len(shape)
    split = (*shape[:channel], groups, shape[channel] // groups, *shape[channel + 1 :])
    axes = [axis for axis in range(1, len(split)) if axis != channel]
    grouped = calculator.do("reshape", dtype, x, split)
    normal = _normal(calculator, grouped, axes, call.attrs.epsilon, dtype)
    return _scaled(calculator, call, calculator.do("reshape", dtype, normal, shape), gamma, beta, dtype)


@_nn("batch_norm")
def _batch_norm(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    """Return (y, moving mean, moving variance) of inference, which does not change the statistics."""
    x, gamma, beta, mean, variance = args
    dtype = str(call.checked_type.fields[0].dtype)
    rank = len(calculator.shape(x))
    axis = int(call.attrs.axis) % rank
    centred = calculator.do("subtract", dtype, x, _along(calculator, mean, axis, rank, dtype))
    wide = _along(calculator, variance, axis, rank, dtype)
    normal = _divided(calculator, centred, wide, call.attrs.epsilon, dtype)
    return _scaled(calculator, call, normal, gamma, beta, dtype), mean, variance


@_nn("bias_add")
def _bias_add(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    x, bias = args
    rank, dtype = len(calculator.shape(x)), dtype_of(call)
    return calculator.do("add", dtype, x, _along(calculator, bias, int(call.attrs.axis) % rank, rank, dtype))


@_nn("prelu")
def _prelu(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    x, alpha = args
    rank, dtype = len(calculator.shape(x)), dtype_of(call)
    slope = _along(calculator, alpha, int(call.attrs.axis) % rank, rank, dtype)
    zero = calculator.constant(0.0, dtype)
    positive = calculator.do("maximum", dtype, x, zero)
    negative = calculator.do("multiply", dtype, calculator.do("minimum", dtype, x, zero), slope)
    return calculator.do("add", dtype, positive, negative)


@_nn("dropout")
def _dropout(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    """Return the results of inference, which drops nothing."""
    dtype = str(call.checked_type.fields[0].dtype)
    return args[0], calculator.do("ones", dtype, calculator.shape(args[0]))


@_nn("cross_entropy", "cross_entropy_with_logits")
def _cross_entropy(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    x, labels = args
    dtype = dtype_of(call)
    if call.op.name == "nn.cross_entropy":
        x = calculator.do("log", dtype, x)
    product = calculator.do("multiply", dtype, x, labels)
    total = calculator.do("sum", dtype, product, axis=None, keepdims=False)
    count = calculator.constant(float(-calculator.shape(x)[0]), dtype)
    return calculator.do("divide", dtype, total, count)


# Contractions.


def _turned(calculator: Calculator, x: Any, turn: bool) -> Any:
    """Return ``x``, with its last two axes exchanged on request."""
    rank = len(calculator.shape(x))
    return calculator.do("permute_dims", "", x, axes=[*range(rank - 2), rank - 1, rank - 2]) if turn else x


@_nn("dense")
def _dense(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    return calculator.do("matmul", dtype_of(call), args[0], _turned(calculator, args[1], True))


@_nn("matmul", "batch_matmul")
def _matmul(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    a = _turned(calculator, args[0], bool(call.attrs.transpose_a))
    b = _turned(calculator, args[1], bool(call.attrs.transpose_b))
    return calculator.do("matmul", dtype_of(call), a, b)


@_nn("conv2d")
def _conv2d(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    attrs = call.attrs
    if attrs.data_layout != "NCHW" or attrs.kernel_layout != "OIHW":
        raise NotImplementedError(f"nn.conv2d of {attrs.data_layout} by {attrs.kernel_layout}")
    padding = ints(attrs.padding)
    top, left, bottom, right = padding if len(padding) == 4 else (*padding, *padding)
    return calculator.do(
        "conv2d",
        dtype_of(call),
        *args,
        padding=((top, bottom), (left, right)),
        strides=ints(attrs.strides),
        dilation=ints(attrs.dilation),
        groups=int(attrs.groups),
    )


@_nn("global_avg_pool2d")
def _global_average(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    if call.attrs.layout != "NCHW":
        raise NotImplementedError(f"nn.global_avg_pool2d of {call.attrs.layout}")
    return calculator.do("mean", dtype_of(call), *args, axis=[2, 3], keepdims=True)
