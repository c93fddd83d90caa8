# SPDX-License-Identifier: Apache-2.0
"""Arguments of nodes and names of types for all converters, with powers of two, extremes of numbers and searches."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import relax
from tvm.relax import op as R

Converter = Callable[[Any, Any], Any]
"""Converts a node of PyTorch's graph, given the importer."""


def core_converters() -> dict[str, Converter]:
    """Return the converters of the core set, by the names of PyTorch's operators."""
    return {
        "exp2.default": _exp2,
        "fmax.default": partial(_of_numbers, R.maximum),
        "fmin.default": partial(_of_numbers, R.minimum),
        "searchsorted.Tensor": _searchsorted,
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
