# SPDX-License-Identifier: Apache-2.0
"""PyTorch's reductions and running sums: their types, and their results over no elements and over no axes.

TVM's importer returns the maximum for ``any``, adds up integers in their own type, and drops the type that a call asks
for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

from tvm import relax, tirx
from tvm.relax import op as R

from ....compat import int_value
from ....relax.rewriting.extents import require_extent
from ..core import Converter, argument
from ..importing.unsupported import Unsupported
from .values import cast, constant, full, has_no_elements, known_shape, result_type, type_name, widened


def reduction_converters() -> dict[str, Converter]:
    """Return the converters of reductions, by the names of PyTorch's operators."""
    return {
        **{f"any.{kind}": _any for kind in ("default", "dim", "dims")},
        **{f"{name}.{kind}": _mean for name, kind in (("mean", "default"), ("mean", "dim"))},
        **{f"sum.{kind}": partial(_total, R.sum, 0) for kind in ("default", "dim_IntList")},
        **{f"prod.{kind}": partial(_total, R.prod, 1) for kind in ("default", "dim_int")},
        "_log_softmax.default": partial(_normalized, R.nn.log_softmax, 0.0),
        "_softmax.default": partial(_normalized, R.nn.softmax, 1.0),
        "amax.default": partial(_extreme, R.max),
        "amin.default": partial(_extreme, R.min),
        "argmax.default": partial(_position, R.argmax),
        "argmin.default": partial(_position, R.argmin),
        "cumprod.default": partial(_running, R.cumprod),
        "cumsum.default": partial(_running, R.cumsum),
        "linalg_vector_norm.default": _norm,
        "max.default": partial(_extreme, R.max),
        "max.dim": partial(_with_positions, R.max, R.argmax),
        "min.default": partial(_extreme, R.min),
        "min.dim": partial(_with_positions, R.min, R.argmin),
        "std.correction": partial(_spread, "deviation"),
        "var.correction": partial(_spread, "variance"),
        "var_mean.correction": partial(_spread, "both"),
    }


def axes_of(given: Any, rank: int) -> list[int]:
    """Return axes from PyTorch's notation, counted from the front: one, several, or None and none for all."""
    if given is None or given == []:
        return list(range(rank))
    axes = [int(axis) for axis in given] if isinstance(given, (list, tuple)) else [int(given)]
    return sorted({axis % rank for axis in axes}) if rank else []


def _operand(node: Any, importer: Any, at: int = 1) -> tuple[Any, list[int], bool]:
    """Return the input, the axes and whether these are kept. Overloads without axes reduce all of them."""
    x = importer.env[node.args[0]]
    axes = axes_of(argument(node, at, "dim", None), len(x.ty.shape))
    return x, axes, bool(argument(node, at + 1, "keepdim", False))


def _over(function: Callable[..., Any], x: Any, axes: list[int], keep: bool, importer: Any) -> Any:
    return importer.block_builder.emit(function(x, axes, keep)) if axes else x


def _any(node: Any, importer: Any) -> Any:
    """(input, axes=None, keepdim=False) -> whether an element is true, or another number than zero."""
    x, axes, keep = _operand(node, importer)
    dtype, shape = result_type(node), known_shape(node)
    if has_no_elements(x, axes) and shape is not None:
        return full(shape, False, dtype, importer)
    true = cast(cast(x, "bool", importer), "int8", importer)
    return cast(cast(_over(R.max, true, axes, keep, importer), "bool", importer), dtype, importer)


def _total(function: Callable[..., Any], neutral: int, node: Any, importer: Any) -> Any:
    """(input, axes=None, keepdim=False, dtype=None): integers are added and multiplied in int64."""
    x, axes, keep = _operand(node, importer)
    dtype, shape = result_type(node), known_shape(node)
    if has_no_elements(x, axes) and shape is not None:
        return full(shape, neutral, dtype, importer)
    if dtype == "bool":  # whether an element is true, or all are
        true = cast(cast(x, "bool", importer), "int8", importer)
        return cast(_over(R.min if neutral else R.max, true, axes, keep, importer), "bool", importer)
    return _over(function, cast(x, dtype, importer), axes, keep, importer)


def _mean(node: Any, importer: Any) -> Any:
    """(input, axes=None, keepdim=False, dtype=None): over no elements it is NaN."""
    x, axes, keep = _operand(node, importer)
    dtype, shape = result_type(node), known_shape(node)
    if has_no_elements(x, axes) and shape is not None:
        return full(shape, math.nan, dtype, importer)
    return _over(R.mean, cast(x, dtype, importer), axes, keep, importer)


def _extreme(function: Callable[..., Any], node: Any, importer: Any) -> Any:
    """(input, axes=None, keepdim=False)."""
    return _over(function, *_operand(node, importer), importer)


def _position(function: Callable[..., Any], node: Any, importer: Any) -> Any:
    """(input, axis=None, keepdim=False) -> the first index of the extreme, in all of the input without an axis."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    axis, keep = argument(node, 1, "dim", None), bool(argument(node, 2, "keepdim", False))
    rank = len(x.ty.shape)
    if rank == 0:
        return full([], 0, "int64", importer)
    if type_name(x) == "bool":
        x = cast(x, "int8", importer)
    if axis is None:
        for extent in x.ty.shape:
            require_extent(importer.block_builder, extent, 1)
        flat = emit(function(emit(R.reshape(x, [-1])), 0))
        return emit(R.reshape(flat, [1] * rank)) if keep else flat
    require_extent(importer.block_builder, x.ty.shape[int(axis) % rank], 1)
    return emit(function(x, int(axis) % rank, keep))


def _with_positions(extreme: Any, position: Any, node: Any, importer: Any) -> Any:
    """(input, axis, keepdim=False) -> (the extremes, their first indices)."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    rank = len(x.ty.shape)
    if rank == 0:
        return relax.Tuple([x, full([], 0, "int64", importer)])
    axis, keep = int(node.args[1]) % rank, bool(argument(node, 2, "keepdim", False))
    require_extent(importer.block_builder, x.ty.shape[axis], 1)
    values = emit(extreme(x, axis, keep))
    numbers = cast(x, "int8", importer) if type_name(x) == "bool" else x
    return relax.Tuple([values, emit(position(numbers, axis, keep))])


def _running(function: Callable[..., Any], node: Any, importer: Any) -> Any:
    """(input, axis, dtype=None): integers and booleans in int64."""
    dtype = result_type(node)
    x = cast(importer.env[node.args[0]], dtype, importer)
    rank = len(x.ty.shape)
    if rank == 0 or has_no_elements(x):
        return x
    wide = widened(x, importer)
    total = importer.block_builder.emit(function(wide, int(node.args[1]) % rank, dtype=type_name(wide)))
    return cast(total, dtype, importer)


def _normalized(function: Callable[..., Any], alone: float, node: Any, importer: Any) -> Any:
    """(input, axis, half_to_float): a tensor of no axis is one element alone."""
    x, dtype = importer.env[node.args[0]], result_type(node)
    if not x.ty.shape:  # NaN and infinities remain NaN
        emit = importer.block_builder.emit
        return emit(R.add(cast(emit(R.subtract(x, x)), dtype, importer), constant(alone, dtype)))
    if has_no_elements(x):
        return cast(x, dtype, importer)
    axis = int(node.args[1]) % len(x.ty.shape)
    return importer.block_builder.emit(function(cast(x, dtype, importer), axis))


def _norm(node: Any, importer: Any) -> Any:
    """(input, order=2, axes=None, keepdim=False, dtype=None)."""
    x, axes, keep = _operand(node, importer, 2)
    emit, dtype = importer.block_builder.emit, result_type(node)
    order = float(argument(node, 1, "ord", 2))
    shape = known_shape(node)
    if has_no_elements(x, axes) and shape is not None:
        if order < 0 or math.isinf(order):
            raise Unsupported.at(node, f"a norm of order {order} over no elements is not defined")
        return full(shape, 0, dtype, importer)
    size = widened(cast(x, dtype, importer), importer)
    wide = type_name(size)
    if order == 2:
        result = emit(R.sqrt(_over(R.sum, emit(R.multiply(size, size)), axes, keep, importer)))
    else:
        size = emit(R.abs(size))
        if math.isinf(order):
            result = _over(R.max if order > 0 else R.min, size, axes, keep, importer)
        elif order == 0:
            other = emit(R.astype(emit(R.not_equal(size, constant(0, wide))), wide))
            result = _over(R.sum, other, axes, keep, importer)
        elif order == 1:
            result = _over(R.sum, size, axes, keep, importer)
        else:
            total = _over(R.sum, emit(R.power(size, constant(order, wide))), axes, keep, importer)
            result = emit(R.power(total, constant(1.0 / order, wide)))
    return cast(result, dtype, importer)


def _spread(result: str, node: Any, importer: Any) -> Any:
    """(input, axes=None, correction=1, keepdim=False) -> a variance, a deviation, or a variance and a mean."""
    given, emit = importer.env[node.args[0]], importer.block_builder.emit
    dtype, x = type_name(given), widened(importer.env[node.args[0]], importer)
    shape, wide = list(x.ty.shape), type_name(x)
    axes = axes_of(argument(node, 1, "dim", None), len(shape))
    keep, correction = bool(node.kwargs.get("keepdim", False)), node.kwargs.get("correction")
    less = 1 if correction is None else correction
    count = reduce(lambda a, b: a * b, (shape[axis] for axis in axes), tirx.const(1, "int64"))
    known = int_value(count)
    if known == 0:
        value = node.meta["val"][0] if result == "both" else node.meta["val"]
        if not all(type(extent) is int for extent in value.shape):
            raise Unsupported.at(node, "a variance of nothing is imported for known shapes only")
        nothing = full(value.shape, math.nan, dtype, importer)
        return relax.Tuple([nothing, nothing]) if result == "both" else nothing
    mean = _over(R.mean, x, axes, True, importer)
    centred = emit(R.subtract(x, mean))
    # Axes are dropped behind the division: TVM gives a tensor without axes over an expression an axis.
    total = _over(R.sum, emit(R.multiply(centred, centred)), axes, True, importer)
    if known is not None:
        divisor: Any = constant(max(known - less, 0), wide)
    else:
        divisor = tirx.Max(tirx.Cast(wide, count) - tirx.const(less, wide), tirx.const(0, wide))
    variance = emit(R.divide(total, divisor))
    variance = variance if keep or not axes else emit(R.squeeze(variance, axes))
    if result == "deviation":
        return cast(emit(R.sqrt(variance)), dtype, importer)
    if result == "variance":
        return cast(variance, dtype, importer)
    mean = mean if keep or not axes else emit(R.squeeze(mean, axes))
    return relax.Tuple([cast(variance, dtype, importer), cast(mean, dtype, importer)])
