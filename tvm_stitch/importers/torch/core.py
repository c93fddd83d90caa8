# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch's core set that TVM's importer lacks or misreads: reductions, ranges that count down.

PyTorch decomposes users' calls into this set: a ``logsumexp`` has an ``amax``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

from tvm import relax, tirx
from tvm.relax import op as R

from ...compat import int_value

Converter = Callable[[Any, Any], Any]
"""Converts a node of PyTorch's graph, given the importer."""


def core_converters() -> dict[str, Converter]:
    """Return the converters of the core set, by the names of PyTorch's operators."""
    return {
        "amax.default": partial(_over_axes, R.max),
        "amin.default": partial(_over_axes, R.min),
        "prod.dim_int": partial(_over_axes, R.prod),
        "min.dim": _min_with_indices,
        "any.default": _any,
        "arange.start_step": _range,
        "exp2.default": _exp2,
        "fmax.default": partial(_of_numbers, R.maximum),
        "fmin.default": partial(_of_numbers, R.minimum),
        "linalg_vector_norm.default": _norm,
        "searchsorted.Tensor": _searchsorted,
        "topk.default": _topk,
        "std.correction": partial(_spread, "deviation"),
        "var.correction": partial(_spread, "variance"),
        "var_mean.correction": partial(_spread, "both"),
    }


def argument(node: Any, at: int, name: str, otherwise: Any) -> Any:
    """Return an argument of a node, given by position or by name."""
    return node.args[at] if at < len(node.args) else node.kwargs.get(name, otherwise)


def results_read(node: Any) -> set[int]:
    """Return the numbers of a node's results that other nodes read."""
    return {user.args[1] for user in node.users if user.target is operator.getitem}


def dtype_name(dtype: Any) -> str:
    """Return TVM's name of a PyTorch type."""
    return str(dtype).removeprefix("torch.")


def _axes(given: Any) -> list[int] | None:
    """Return axes as a list from PyTorch's notation: one, several, or None for all."""
    if given is None or given == []:
        return None
    return [int(axis) for axis in given] if isinstance(given, Sequence) else [int(given)]


def _over_axes(reduce: Any, node: Any, importer: Any) -> Any:
    """(input, axes, keepdim) -> the reduction over the axes, or over all if none are given."""
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    if (dtype := node.kwargs.get("dtype")) is not None:
        x = emit(R.astype(x, dtype_name(dtype)))
    elif reduce is R.prod and str(x.ty.dtype.dtype) in ("bool", "int8", "int16", "int32", "uint8"):
        x = emit(R.astype(x, "int64"))  # PyTorch multiplies integers in int64
    return emit(reduce(x, _axes(argument(node, 1, "dim", None)), bool(argument(node, 2, "keepdim", False))))


def _min_with_indices(node: Any, importer: Any) -> Any:
    """(input, axis, keepdim) -> (the least values, their indices)."""
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    axis, keep = int(node.args[1]), bool(argument(node, 2, "keepdim", False))
    return relax.Tuple([emit(R.min(x, axis, keep)), emit(R.argmin(x, axis, keep))])


def _any(node: Any, importer: Any) -> Any:
    """(input) -> whether an element is true, or a non-zero number."""
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    dtype = str(x.ty.dtype.dtype)
    if dtype != "bool":
        x = emit(R.not_equal(x, relax.const(0, dtype)))
    return emit(R.astype(emit(R.max(emit(R.astype(x, "int8")))), "bool"))


def _range(node: Any, importer: Any) -> Any:
    """(start, end, step) -> a range. TVM's range of integers that counts down has too many elements."""
    start, end = (importer.env[arg] if arg in importer.env else arg for arg in node.args[:2])
    step = argument(node, 2, "step", 1)
    if not isinstance(step, int) or step > 0 or isinstance(start, float) or isinstance(end, float):
        return importer._arange(node)
    emit, dtype = importer.block_builder.emit, dtype_name(node.meta["val"].dtype)
    count = -((end - start) // -step)
    last = start + (count - 1) * step
    return emit(R.flip(emit(R.arange(last, start + 1, -step, dtype=dtype)), 0))


def _exp2(node: Any, importer: Any) -> Any:
    """(input): the result is a float for integers."""
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    dtype = dtype_name(node.meta["val"].dtype)
    if str(x.ty.dtype.dtype) != dtype:
        x = emit(R.astype(x, dtype))
    return emit(R.power(relax.const(2, dtype), x))


def _of_numbers(extreme: Any, node: Any, importer: Any) -> Any:
    """(left, right) -> the extreme of both. For a NaN and a number it is the number."""
    emit, dtype = importer.block_builder.emit, dtype_name(node.meta["val"].dtype)
    given = (importer.env[arg] for arg in node.args)
    left, right = (x if str(x.ty.dtype.dtype) == dtype else emit(R.astype(x, dtype)) for x in given)
    if "float" not in dtype:
        return emit(extreme(left, right))
    extreme_value = emit(R.where(emit(R.isnan(right)), left, emit(extreme(left, right))))
    return emit(R.where(emit(R.isnan(left)), right, extreme_value))


def _norm(node: Any, importer: Any) -> Any:
    """(input, order=2, axes=None, keepdim=False): the norm of order 0 is the number of non-zero elements."""
    if argument(node, 1, "ord", 2) != 0:
        return importer._linalg_vector_norm(node)
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    dtype = str(x.ty.dtype.dtype)
    counted = emit(R.astype(emit(R.not_equal(x, relax.const(0, dtype))), dtype))
    return emit(
        R.sum(counted, _axes(argument(node, 2, "dim", None)), bool(argument(node, 3, "keepdim", False)))
    )


def _searchsorted(node: Any, importer: Any) -> Any:
    """(sorted sequence, values): for a single sequence this is ``bucketize`` with exchanged operands."""
    sequence, values = (importer.env[arg] for arg in node.args[:2])
    if len(sequence.ty.shape) != 1 or node.kwargs.get("sorter") is not None:
        raise ValueError(
            "searchsorted is imported for one sorted sequence only, of one dimension and without sorter"
        )
    right = bool(node.kwargs.get("right", False)) or node.kwargs.get("side") == "right"
    narrow = bool(node.kwargs.get("out_int32", False))
    return importer.block_builder.emit(R.bucketize(values, sequence, narrow, right))


def _topk(node: Any, importer: Any) -> Any:
    """(input, count, axis=-1, largest=True, sorted=True): always sorted, because PyTorch leaves the order open
    otherwise.
    """
    x, count = importer.env[node.args[0]], argument(node, 1, "k", 1)
    axis, largest = argument(node, 2, "dim", -1), bool(argument(node, 3, "largest", True))
    return importer.block_builder.emit(R.topk(x, count, axis, "both", largest, "int64"))


def _spread(result: str, node: Any, importer: Any) -> Any:
    """(input, axes=None, correction=1, keepdim=False) -> a variance, a deviation, or a variance and a mean.

    TVM's importer has no variance together with its mean, and no correction over a symbolic number of elements.
    """
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    shape, dtype = list(x.ty.shape), str(x.ty.dtype.dtype)
    given = _axes(argument(node, 1, "dim", None))
    axes = list(range(len(shape))) if given is None else given
    count = reduce(operator.mul, (shape[axis] for axis in axes), tirx.const(1, "int64"))
    if result != "both" and int_value(count) is not None:
        return (importer._var if result == "variance" else importer._std)(node)
    keep, correction = bool(node.kwargs.get("keepdim", False)), node.kwargs.get("correction")
    less = 1 if correction is None else correction
    mean = emit(R.mean(x, axes, True))
    centred = emit(R.subtract(x, mean))
    total = emit(R.sum(emit(R.multiply(centred, centred)), axes, keep))
    if (known := int_value(count)) is not None:
        divisor: Any = relax.const(max(known - less, 0), dtype)
    else:
        divisor = tirx.Max(tirx.Cast(dtype, count) - tirx.const(less, dtype), tirx.const(0, dtype))
    variance = emit(R.divide(total, divisor))
    if result == "both":
        return relax.Tuple([variance, mean if keep else emit(R.squeeze(mean, axes))])
    return variance if result == "variance" else emit(R.sqrt(variance))
