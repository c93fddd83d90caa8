# SPDX-License-Identifier: Apache-2.0
"""Rules of Relay's operators in terms of :mod:`stitch_testing.reference.values`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import tvm
from tvm import relay

from ..reference.bounds import Bound
from ..reference.operators import Operation
from ..reference.values import RULES, Exact


class Calculator:
    """Computes operations on the values of an evaluator: exact ones, or bounds."""

    def __init__(self, values: Exact) -> None:
        self.values = values

    def do(self, name: str, dtype: str, *args: Any, **attrs: Any) -> Any:
        """Return the value of operator ``name`` of :data:`~stitch_testing.reference.values.RULES`."""
        return self.values.apply(RULES[name], Operation(name, SimpleNamespace(**attrs), dtype), list(args))

    def shape(self, value: Any) -> tuple[int, ...]:
        """Return the shape of a tensor's value."""
        return self.values.shape(value)

    def constant(self, value: float, dtype: str) -> Any:
        """Return a scalar's value, as ``dtype`` holds it."""
        return self.values.wrap(np.asarray(value, np.dtype(dtype)), dtype)

    def number(self, value: Any) -> Any:
        """Return a scalar's value as a Python number."""
        return (value.value if isinstance(value, Bound) else value).item()


Translation = Callable[[Calculator, relay.Call, list[Any]], Any]
TRANSLATIONS: dict[str, Translation] = {}


def translation(*names: str) -> Callable[[Translation], Translation]:
    """Register the rule of the Relay operators of these names."""

    def register(function: Translation) -> Translation:
        for name in names:
            TRANSLATIONS[name] = function
        return function

    return register


def dtype_of(call: relay.Call) -> str:
    """Return the dtype of a call's result, or "" for a tuple."""
    return str(getattr(call.checked_type, "dtype", ""))


def shape_of(call: relay.Call) -> tuple[int, ...]:
    """Return the shape of a call's result."""
    return tuple(int(extent) for extent in call.checked_type.concrete_shape)


def ints(values: Any) -> tuple[int, ...]:
    """Return an array of integers as Python ints."""
    return tuple(int(value) for value in values)


_SAME = (
    "add subtract multiply divide floor_divide floor_mod maximum minimum abs negative sqrt sign floor ceil trunc "
    "round isnan isinf isfinite equal not_equal less less_equal greater greater_equal logical_and logical_or "
    "logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not left_shift right_shift where exp log "
    "rsqrt power tanh sigmoid erf sin cos tan sinh cosh asin acos atan asinh acosh atanh nn.relu"
)


_RENAMED: dict[str, tuple[str, ...]] = {
    "cast": ("astype",),
    "nn.leaky_relu": ("nn.leakyrelu", "alpha"),
    "concatenate": ("concat", "axis"),
    "stack": ("stack", "axis"),
    "split": ("split", "indices_or_sections", "axis"),
    "gather": ("gather_elements", "axis"),
    "repeat": ("repeat", "repeats", "axis"),
    "reverse": ("flip", "axis"),
    "one_hot": ("one_hot", "depth", "axis"),
    "cumsum": ("cumsum", "axis", "exclusive"),
    "cumprod": ("cumprod", "axis", "exclusive"),
    "nn.nll_loss": ("nn.nll_loss", "reduction", "ignore_index"),
}
"""Relay's operators that only have another name, and the common attributes."""


def _named(name: str, *attributes: str) -> Translation:
    return lambda calculator, call, args: calculator.do(
        name, dtype_of(call), *args, **{each: getattr(call.attrs, each) for each in attributes}
    )


TRANSLATIONS.update({name: _named(name) for name in _SAME.split()})
TRANSLATIONS.update({name: _named(*known) for name, known in _RENAMED.items()})


@translation("copy", "annotation.stop_fusion", "device_copy", "on_device")
def _identity(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    return args[0]


@translation("clip")
def _clip(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    return calculator.do("clip", dtype_of(call), *args, call.attrs.a_min, call.attrs.a_max)


@translation("log2", "log10")
def _logarithm(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    dtype, base = dtype_of(call), 2.0 if call.op.name == "log2" else 10.0
    scale = calculator.values.wrap(np.asarray(1 / math.log(base)), "float64")
    return calculator.do("multiply", dtype, calculator.do("log", dtype, *args), scale)


# Data movement.


@translation(
    "reshape", "expand_dims", "squeeze", "nn.batch_flatten", "reshape_like", "contrib_reverse_reshape"
)
def _reshape(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    return calculator.do("reshape", dtype_of(call), args[0], shape_of(call))


@translation("broadcast_to", "broadcast_to_like")
def _broadcast_to(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    return calculator.do("broadcast_to", dtype_of(call), args[0], shape_of(call))


@translation("transpose")
def _transpose(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    rank = len(calculator.shape(args[0]))
    axes = None if call.attrs.axes is None else [axis % rank for axis in ints(call.attrs.axes)]
    return calculator.do("permute_dims", dtype_of(call), *args, axes=axes)


@translation("strided_slice")
def _strided_slice(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    attrs, shape = call.attrs, calculator.shape(args[0])
    begin, end = ints(attrs.begin), ints(attrs.end)
    axes = tuple(range(len(begin))) if attrs.axes is None else ints(attrs.axes)
    axes = tuple(axis % len(shape) for axis in axes)
    if attrs.slice_mode == "size":  # ``end`` holds sizes, -1 for the rest
        end = tuple(
            shape[axis] if size < 0 else first + size
            for axis, first, size in zip(axes, begin, end, strict=True)
        )
        return calculator.do("strided_slice", dtype_of(call), args[0], axes, begin, end)
    strides = ints(attrs.strides) if attrs.strides is not None else (1,)
    strides = strides * len(begin) if len(strides) == 1 else strides
    return calculator.do("strided_slice", dtype_of(call), args[0], axes, begin, end, strides)


@translation("nn.pad")
def _pad(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    widths = [int(width) for pair in call.attrs.pad_width for width in pair]
    value = calculator.number(args[1])
    return calculator.do(
        "nn.pad", dtype_of(call), args[0], pad_width=widths, pad_mode=call.attrs.pad_mode, pad_value=value
    )


@translation("take")
def _take(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    attrs = call.attrs
    if int(attrs.batch_dims):
        raise NotImplementedError(f"take with batch_dims={attrs.batch_dims}")
    mode = "raise" if attrs.mode == "fast" else attrs.mode
    return calculator.do("take", dtype_of(call), *args, axis=attrs.axis, mode=mode)


@translation("gather_nd")
def _gather_nd(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    data, indices = args
    rank = len(calculator.shape(indices))
    last = calculator.do("permute_dims", "", indices, axes=[*range(1, rank), 0])  # Relay has the index first
    return calculator.do("gather_nd", dtype_of(call), data, last, batch_dims=call.attrs.batch_dims)


@translation("tile")
def _tile(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    return calculator.do("tile", dtype_of(call), *args, repeats=ints(call.attrs.reps))


@translation("trilu")
def _trilu(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    name = "triu" if call.attrs.upper else "tril"
    return calculator.do(name, dtype_of(call), args[0], calculator.number(args[1]))


@translation("full", "full_like")
def _full(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    return calculator.do("full", dtype_of(call), shape_of(call), args[-1])


@translation("zeros", "ones", "zeros_like", "ones_like")
def _filled(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    name = call.op.name.removesuffix("_like")
    return calculator.do(name, dtype_of(call), shape_of(call))


@translation("arange")
def _arange(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    return calculator.do("arange", dtype_of(call), *(calculator.number(arg) for arg in args))


# Reductions.


def reduced_axes(attrs: Any, rank: int) -> list[int]:
    """Return the axes of a reduction, non-negative. ``exclude`` means all axes that ``axis`` does not name."""
    axis = attrs.axis
    if axis is None:
        return list(range(rank))
    named = {int(value) % rank for value in (axis if isinstance(axis, (Sequence, tvm.ir.Array)) else [axis])}
    return [a for a in range(rank) if (a in named) != bool(attrs.exclude)]


@translation("sum", "mean", "max", "min", "prod")
def _reduce(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    axes = reduced_axes(call.attrs, len(calculator.shape(args[0])))
    return calculator.do(call.op.name, dtype_of(call), *args, axis=axes, keepdims=call.attrs.keepdims)


@translation("all", "any")
def _truth(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    axes = reduced_axes(call.attrs, len(calculator.shape(args[0])))
    name = "min" if call.op.name == "all" else "max"
    return calculator.do(name, "bool", *args, axis=axes, keepdims=call.attrs.keepdims)


@translation("argmax", "argmin")
def _arg_extreme(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    rank = len(calculator.shape(args[0]))
    axes = reduced_axes(call.attrs, rank)
    if call.attrs.select_last_index or len(axes) not in (1, rank):
        raise NotImplementedError(f"{call.op.name} over axes {axes}, or of the last among equals")
    axis = axes[0] if len(axes) == 1 else None
    return calculator.do(call.op.name, dtype_of(call), *args, axis=axis, keepdims=call.attrs.keepdims)


@translation("variance")
def _variance(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    x, mean = args
    dtype, attrs = dtype_of(call), call.attrs
    axes = reduced_axes(attrs, len(calculator.shape(x)))
    kept = [1 if axis in axes else extent for axis, extent in enumerate(calculator.shape(x))]
    centred = calculator.do("subtract", dtype, x, calculator.do("reshape", dtype, mean, tuple(kept)))
    square = calculator.do("multiply", dtype, centred, centred)
    result = calculator.do("mean", dtype, square, axis=axes, keepdims=attrs.keepdims)
    if not attrs.unbiased:
        return result
    count = math.prod(calculator.shape(x)[axis] for axis in axes)
    factor = calculator.values.wrap(np.asarray(count / (count - 1)), "float64")
    return calculator.do("multiply", dtype, result, factor)


@translation("collapse_sum_like", "collapse_sum_to")
def _collapse_sum(calculator: Calculator, call: relay.Call, args: list[Any]) -> Any:
    shape, given = shape_of(call), calculator.shape(args[0])
    extra = len(given) - len(shape)
    axes = [*range(extra), *(extra + place for place, extent in enumerate(shape) if extent == 1)]
    total = calculator.do("sum", dtype_of(call), args[0], axis=axes, keepdims=True)
    return calculator.do("reshape", dtype_of(call), total, shape)
