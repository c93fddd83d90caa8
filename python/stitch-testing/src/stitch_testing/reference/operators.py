# SPDX-License-Identifier: Apache-2.0
"""Operators in NumPy, under Relax's names, for the float64 references of all front ends.

Every rule takes the operation and its evaluated arguments. Tensors are arrays: floats are widened to float64, and
integers and booleans keep their dtype. Shapes are tuples of int, scalars are int or float, and tuples are Python
tuples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np


class Kind(Enum):
    """The way in which an operator's result depends on small changes of its arguments."""

    LIGHT = "element-wise, correctly rounded where the target is"
    HEAVY = "element-wise, an approximation on most targets"
    MOVE = "moves elements, changes none"
    EXTREME = "picks one element (max, min)"
    SUM = "adds elements along axes (sum, mean)"
    PRODUCT = "multiplies elements along axes"
    CONTRACT = "sums of products of two tensors (matmul, convolution)"
    OTHER = "anything else"


class Rule(NamedTuple):
    kind: Kind
    apply: Callable[..., Any]


class Operation(NamedTuple):
    """One use of an operator: its name without prefix, its attributes, its result's dtype ("" for tuples)."""

    name: str
    attrs: Any
    dtype: str


RULES: dict[str, Rule] = {}


def _rule(kind: Kind, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            RULES[name] = Rule(kind, function)
        return function

    return register


def is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def storage_dtype(dtype: str) -> np.dtype:
    """Return the dtype in which the reference computes ``dtype``: float64 for floats, itself for the rest."""
    return np.dtype("float64") if is_float(dtype) else np.dtype(dtype)


def cast(x: np.ndarray, dtype: str) -> np.ndarray:
    """Convert as a cast in the graph does: floats are rounded to ``dtype``, then held in float64 again."""
    if dtype == "bool":
        return np.asarray(x != 0)
    if is_float(dtype):
        with np.errstate(over="ignore"):
            return np.asarray(x).astype(np.dtype(dtype)).astype(np.float64)
    return np.asarray(x).astype(np.dtype(dtype))


_ERF_KNOTS = np.arange(0.0, 6.0 + 1 / 128, 1 / 64)
_ERF_AT_KNOTS = np.array([math.erf(knot) for knot in _ERF_KNOTS])


def erf(x: np.ndarray) -> np.ndarray:
    """Return erf in float64 to about 1e-15: Taylor's series of degree 7 about the nearest of 385 knots."""
    magnitude = np.minimum(np.abs(x), 6.0)  # erf(6) rounds to 1
    index = np.rint(np.nan_to_num(magnitude) * 64).astype(np.int64)
    knot = _ERF_KNOTS[index]
    d = magnitude - knot
    # erf's n-th derivative is slope * h_n with h_1 = 1, h_2 = -2t and h_(n+2) = -2t h_(n+1) - 2n h_n.
    slope = 2 / math.sqrt(math.pi) * np.exp(-knot * knot)
    previous, current = np.zeros_like(knot), np.ones_like(knot)
    total, term = np.zeros_like(knot), d.copy()
    for n in range(1, 8):
        total += current * term
        previous, current = current, -2 * knot * current - 2 * (n - 1) * previous
        term = term * d / (n + 1)
    return np.copysign(_ERF_AT_KNOTS[index] + slope * total, x)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def truncated_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Divide integers towards zero, and floats truly."""
    if np.issubdtype(np.result_type(a, b), np.inexact):
        return a / b
    quotient = np.floor_divide(a, b)
    return quotient + ((quotient < 0) & (quotient * b != a)).astype(quotient.dtype)


def _element_wise(kind: Kind, table: dict[str, Callable[..., np.ndarray]]) -> None:
    for name, function in table.items():

        def apply(
            operation: Operation, *args: Any, function: Callable[..., np.ndarray] = function
        ) -> np.ndarray:
            with np.errstate(all="ignore"):
                return np.asarray(function(*args)).astype(storage_dtype(operation.dtype), copy=False)

        RULES[name] = Rule(kind, apply)


_element_wise(
    Kind.LIGHT,
    {
        "add": np.add,
        "subtract": np.subtract,
        "multiply": np.multiply,
        "divide": truncated_divide,
        "floor_divide": np.floor_divide,
        "mod": np.mod,
        "floor_mod": np.mod,
        "maximum": np.maximum,
        "minimum": np.minimum,
        "abs": np.abs,
        "negative": np.negative,
        "square": np.square,
        "sqrt": np.sqrt,
        "sign": np.sign,
        "floor": np.floor,
        "ceil": np.ceil,
        "trunc": np.trunc,
        "round": np.rint,
        "clip": np.clip,
        "isnan": np.isnan,
        "isinf": np.isinf,
        "isfinite": np.isfinite,
        "equal": np.equal,
        "not_equal": np.not_equal,
        "less": np.less,
        "less_equal": np.less_equal,
        "greater": np.greater,
        "greater_equal": np.greater_equal,
        "logical_and": np.logical_and,
        "logical_or": np.logical_or,
        "logical_xor": np.logical_xor,
        "logical_not": np.logical_not,
        "bitwise_and": np.bitwise_and,
        "bitwise_or": np.bitwise_or,
        "bitwise_xor": np.bitwise_xor,
        "bitwise_not": np.bitwise_not,
        "left_shift": np.left_shift,
        "right_shift": np.right_shift,
        "where": np.where,
        "ewise_fma": lambda a, b, c: a * b + c,
        "nn.relu": lambda x: np.maximum(x, 0),
        "nn.relu6": lambda x: np.clip(x, 0, 6),
    },
)
_element_wise(
    Kind.HEAVY,
    {
        "exp": np.exp,
        "log": np.log,
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "power": np.power,
        "tanh": np.tanh,
        "sigmoid": _sigmoid,
        "erf": erf,
        "sin": np.sin,
        "cos": np.cos,
        "tan": np.tan,
        "sinh": np.sinh,
        "cosh": np.cosh,
        "asin": np.arcsin,
        "acos": np.arccos,
        "atan": np.arctan,
        "asinh": np.arcsinh,
        "acosh": np.arccosh,
        "atanh": np.arctanh,
        "atan2": np.arctan2,
        "log_add_exp": np.logaddexp,
        "nn.gelu": lambda x: 0.5 * x * (1 + erf(x * math.sqrt(0.5))),
        "nn.gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "nn.silu": lambda x: x * _sigmoid(x),
        "nn.selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    },
)


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)


def _rules(kind: Kind, table: dict[str, Callable[..., Any]]) -> None:
    """Register operators that are one NumPy expression of the operation and its arguments."""
    RULES.update({name: Rule(kind, function) for name, function in table.items()})


_rules(
    Kind.LIGHT,
    {
        "astype": lambda o, x: cast(x, o.dtype),
        "nn.leakyrelu": lambda o, x: np.where(x > 0, x, x * float(o.attrs.alpha)),
    },
)
_rules(
    Kind.MOVE,
    {
        "broadcast_to": lambda o, x, shape: np.broadcast_to(x, shape),
        "reshape": lambda o, x, shape: np.reshape(x, shape),
        "permute_dims": lambda o, x: np.transpose(x, None if o.attrs.axes is None else _ints(o.attrs.axes)),
        "expand_dims": lambda o, x: np.expand_dims(x, _ints(o.attrs.axis)),
        "squeeze": lambda o, x: np.squeeze(x, None if o.attrs.axis is None else _ints(o.attrs.axis)),
        "flatten": lambda o, x: np.reshape(x, -1),
        "nn.batch_flatten": lambda o, x: np.reshape(x, (x.shape[0], -1)),
        "concat": lambda o, tensors: np.concatenate(tensors, axis=_optional_int(o.attrs.axis)),
        "stack": lambda o, tensors: np.stack(tensors, axis=int(o.attrs.axis)),
        "flip": lambda o, x: np.flip(x, int(o.attrs.axis)),
        "tile": lambda o, x: np.tile(x, _ints(o.attrs.repeats)),
        "repeat": lambda o, x: np.repeat(x, int(o.attrs.repeats), axis=_optional_int(o.attrs.axis)),
        "gather_elements": lambda o, x, indices: np.take_along_axis(x, indices, axis=int(o.attrs.axis)),
        "tril": lambda o, x, k: np.tril(x, k),
        "triu": lambda o, x, k: np.triu(x, k),
        "full": lambda o, shape, value: np.broadcast_to(cast(value, o.dtype), shape),
        "full_like": lambda o, x, value: np.broadcast_to(cast(value, o.dtype), x.shape),
        "zeros": lambda o, shape: np.zeros(shape, storage_dtype(o.dtype)),
        "zeros_like": lambda o, x: np.zeros(x.shape, storage_dtype(o.dtype)),
        "ones": lambda o, shape: np.ones(shape, storage_dtype(o.dtype)),
        "ones_like": lambda o, x: np.ones(x.shape, storage_dtype(o.dtype)),
        "arange": lambda o, start, stop, step: np.arange(start, stop, step).astype(storage_dtype(o.dtype)),
        "shape_of": lambda o, x: x.shape,
        "shape_to_tensor": lambda o, shape: np.array(shape, np.int64),
        "tensor_to_shape": lambda o, x: _ints(x),
    },
)


@_rule(Kind.MOVE, "split")
def _split(operation: Operation, x: np.ndarray) -> tuple[np.ndarray, ...]:
    sections, axis = operation.attrs.indices_or_sections, int(operation.attrs.axis)
    if hasattr(sections, "value") or isinstance(sections, int):
        size = -(-x.shape[axis] // int(sections))  # TVM gives the last slice the remainder
        return tuple(np.split(x, range(size, size * int(sections), size), axis=axis))
    return tuple(np.split(x, _ints(sections), axis=axis))


@_rule(Kind.MOVE, "strided_slice")
def _strided_slice(
    operation: Operation,
    x: np.ndarray,
    axes: tuple[int, ...],
    begin: tuple[int, ...],
    end: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
) -> np.ndarray:
    index = [slice(None)] * x.ndim
    for place, axis in enumerate(axes):
        index[axis] = slice(begin[place], end[place], strides[place] if strides else 1)
    return x[tuple(index)]


@_rule(Kind.MOVE, "dynamic_strided_slice")
def _dynamic_strided_slice(
    operation: Operation, x: np.ndarray, begin: np.ndarray, end: np.ndarray, strides: np.ndarray
) -> np.ndarray:
    return x[tuple(slice(*_ints(bounds)) for bounds in zip(begin, end, strides, strict=True))]


@_rule(Kind.MOVE, "take")
def _take(operation: Operation, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    axis, mode = _optional_int(operation.attrs.axis), str(operation.attrs.mode)
    return np.take(x, indices, axis, mode="clip" if mode == "clip" else "wrap" if mode == "wrap" else "raise")


@_rule(Kind.MOVE, "gather_nd")
def _gather_nd(operation: Operation, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    batch = int(operation.attrs.batch_dims)
    places = np.indices(indices.shape[:-1], sparse=True)[:batch]
    return x[(*places, *np.moveaxis(indices, -1, 0))]


@_rule(Kind.MOVE, "nn.pixel_shuffle")
def _pixel_shuffle(operation: Operation, x: np.ndarray) -> np.ndarray:
    factor = int(operation.attrs.upscale_factor)
    *outer, channels, height, width = x.shape
    squares = x.reshape(*outer, channels // factor**2, factor, factor, height, width)
    rows = np.moveaxis(squares, [-4, -3], [-3, -1])
    return rows.reshape(*outer, channels // factor**2, height * factor, width * factor)


@_rule(Kind.MOVE, "nn.pad")
def _pad(operation: Operation, x: np.ndarray) -> np.ndarray:
    widths = _ints(operation.attrs.pad_width)
    if operation.attrs.pad_mode != "constant":
        raise NotImplementedError(f"nn.pad with pad_mode={operation.attrs.pad_mode!r}")
    pairs = list(zip(widths[::2], widths[1::2], strict=True))
    return np.pad(x, pairs, constant_values=float(operation.attrs.pad_value))


# Reductions.


def axes_of(operation: Operation, rank: int) -> tuple[int, ...]:
    """Return the axes that a statistical operator reduces, non-negative."""
    axis = operation.attrs.axis
    if axis is None:
        return tuple(range(rank))
    if hasattr(axis, "value") or isinstance(axis, int):
        return (int(axis) % rank,)
    return tuple(value % rank for value in _ints(axis))


def _reduce(kind: Kind, name: str, function: Callable[..., np.ndarray]) -> None:
    def apply(operation: Operation, x: np.ndarray) -> np.ndarray:
        result = function(x, axis=axes_of(operation, x.ndim), keepdims=bool(operation.attrs.keepdims))
        return np.asarray(result).astype(storage_dtype(operation.dtype), copy=False)

    RULES[name] = Rule(kind, apply)


def _mean(x: np.ndarray, axis: tuple[int, ...], keepdims: bool) -> np.ndarray:
    if not np.issubdtype(x.dtype, np.inexact):
        raise NotImplementedError(f"mean of {x.dtype}")
    return np.mean(x, axis=axis, keepdims=keepdims)


_reduce(Kind.SUM, "sum", lambda x, axis, keepdims: np.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype))
_reduce(Kind.SUM, "mean", _mean)
_reduce(Kind.EXTREME, "max", np.max)
_reduce(Kind.EXTREME, "min", np.min)
_reduce(
    Kind.PRODUCT, "prod", lambda x, axis, keepdims: np.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype)
)
_reduce(Kind.OTHER, "variance", np.var)
_reduce(Kind.OTHER, "std", np.std)


@_rule(Kind.OTHER, "argmax", "argmin")
def _arg_extreme(operation: Operation, x: np.ndarray) -> np.ndarray:
    function = np.argmax if operation.name == "argmax" else np.argmin
    axis = _optional_int(operation.attrs.axis)
    return function(x, axis=axis, keepdims=bool(operation.attrs.keepdims)).astype(operation.dtype)


@_rule(Kind.OTHER, "cumsum", "cumprod")
def _scan(operation: Operation, x: np.ndarray) -> np.ndarray:
    if operation.attrs.exclusive:
        raise NotImplementedError(f"{operation.name} with exclusive=True")
    function = np.cumsum if operation.name == "cumsum" else np.cumprod
    axis = _optional_int(operation.attrs.axis)
    return function(x, axis=axis, dtype=storage_dtype(operation.dtype))


@_rule(Kind.OTHER, "collapse_sum_to")
def _collapse_sum_to(operation: Operation, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    extra = x.ndim - len(shape)
    axes = [*range(extra), *(extra + i for i, size in enumerate(shape) if size == 1)]
    return np.sum(x, axis=tuple(axes), dtype=x.dtype).reshape(shape)
