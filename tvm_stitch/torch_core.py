# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch's core set that TVM's importer lacks or gets wrong: reductions, ranges that count down.

PyTorch decomposes what users call into this set: a ``logsumexp`` has an ``amax``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tvm import relax
from tvm.relax import op as R

Converter = Callable[[Any, Any], Any]
"""Of a node of PyTorch's graph, and the importer."""


def core_converters() -> dict[str, Converter]:
    """Converters for them, by the names of PyTorch's operators."""
    return {
        "amax.default": partial(_over_axes, R.max),
        "amin.default": partial(_over_axes, R.min),
        "prod.dim_int": partial(_over_axes, R.prod),
        "min.dim": _min_with_indices,
        "any.default": _any,
        "arange.start_step": _range,
    }


def argument(node: Any, at: int, name: str, otherwise: Any) -> Any:
    """An argument, given by place or by name."""
    return node.args[at] if at < len(node.args) else node.kwargs.get(name, otherwise)


def dtype_name(dtype: Any) -> str:
    """TVM's name of one of PyTorch's types."""
    return str(dtype).removeprefix("torch.")


def _axes(given: Any) -> list[int] | None:
    """Axes as PyTorch gives them: one, several, or none for all."""
    if given is None or given == []:
        return None
    return [int(axis) for axis in given] if isinstance(given, Sequence) else [int(given)]


def _over_axes(reduce: Any, node: Any, importer: Any) -> Any:
    """(input, axes, keepdim) -> the reduction over the axes, over all where none are given."""
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    if (dtype := node.kwargs.get("dtype")) is not None:
        x = emit(R.astype(x, dtype_name(dtype)))
    elif reduce is R.prod and str(x.ty.dtype.dtype) in ("bool", "int8", "int16", "int32", "uint8"):
        x = emit(R.astype(x, "int64"))  # in which PyTorch multiplies integers
    return emit(reduce(x, _axes(argument(node, 1, "dim", None)), bool(argument(node, 2, "keepdim", False))))


def _min_with_indices(node: Any, importer: Any) -> Any:
    """(input, axis, keepdim) -> (the least values, where they are)."""
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    axis, keep = int(node.args[1]), bool(argument(node, 2, "keepdim", False))
    return relax.Tuple([emit(R.min(x, axis, keep)), emit(R.argmin(x, axis, keep))])


def _any(node: Any, importer: Any) -> Any:
    """(input) -> whether an element is true, or a number that is not zero."""
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    dtype = str(x.ty.dtype.dtype)
    if dtype != "bool":
        x = emit(R.not_equal(x, relax.const(0, dtype)))
    return emit(R.astype(emit(R.max(emit(R.astype(x, "int8")))), "bool"))


def _range(node: Any, importer: Any) -> Any:
    """(start, end, step) -> a range; TVM gives one of integers that counts down more elements than it has."""
    start, end = (importer.env[arg] if arg in importer.env else arg for arg in node.args[:2])
    step = argument(node, 2, "step", 1)
    if not isinstance(step, int) or step > 0 or isinstance(start, float) or isinstance(end, float):
        return importer._arange(node)
    emit, dtype = importer.block_builder.emit, dtype_name(node.meta["val"].dtype)
    count = -((end - start) // -step)
    last = start + (count - 1) * step
    return emit(R.flip(emit(R.arange(last, start + 1, -step, dtype=dtype)), 0))
