# SPDX-License-Identifier: Apache-2.0
"""Tensors, numbers and types that converters share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from ....compat import int_value
from ....relax.rewriting.extents import require_extent
from ..core import dtype_name
from ..importing.unsupported import OutOfRange

HALVES = ("float16", "bfloat16")


def type_name(x: Any) -> str:
    """Return TVM's name of a tensor's type."""
    return str(x.ty.dtype.dtype)


def result_type(node: Any) -> str:
    """Return TVM's name of the type that PyTorch has computed for a node."""
    return dtype_name(node.meta["val"].dtype)


def known_shape(node: Any) -> list[int] | None:
    """Return the shape that PyTorch has computed for a node, or None if an extent is symbolic."""
    shape = list(node.meta["val"].shape)
    return shape if all(type(extent) is int for extent in shape) else None


def is_integer(dtype: str) -> bool:
    """Return whether a type is one of integers."""
    return dtype.startswith(("int", "uint"))


def constant(value: Any, dtype: str) -> Any:
    """Return a number as a constant of no axis. Integers wrap around, as in PyTorch: 300 is 44 in uint8.

    Args:
        value: a number.
        dtype: TVM's name of the type.
    """
    if dtype == "bool":
        return relax.const(bool(value), "bool")
    if is_integer(dtype):
        return relax.const(wrapped(value, dtype), dtype)
    return relax.const(float(value), dtype)


def array(numbers: np.ndarray) -> Any:
    """Return numbers as a constant of their own type. ``relax.const`` alone narrows them to 32 bits."""
    return relax.const(numbers, str(numbers.dtype))


def wrapped(value: Any, dtype: str) -> int:
    """Return a number as an integer of a type, modulo its size."""
    limits = np.iinfo(dtype)
    whole = int(value)
    size = int(limits.max) - int(limits.min) + 1
    return (whole - int(limits.min)) % size + int(limits.min)


def cast(x: Any, dtype: str, importer: Any) -> Any:
    """Return a tensor in a type. In bool, numbers other than zero are true."""
    given = type_name(x)
    if given == dtype:
        return x
    if dtype == "bool":
        return importer.block_builder.emit(R.not_equal(x, constant(0, given)))
    return importer.block_builder.emit(R.astype(x, dtype))


def operand(value: Any, dtype: str, importer: Any) -> Any:
    """Return a tensor, a number or a symbolic size as a tensor of a type."""
    if not isinstance(value, relax.Expr):
        return constant(value, dtype)
    if not isinstance(value.ty, relax.TensorType):
        return importer._prim_value_to_scalar_tensor(value, dtype)
    return cast(value, dtype, importer)


def widened(x: Any, importer: Any) -> Any:
    """Return a tensor of a half type in float32, and others as they are."""
    return cast(x, "float32", importer) if type_name(x) in HALVES else x


def full(shape: Sequence[Any], value: Any, dtype: str, importer: Any) -> Any:
    """Return a tensor filled with a number."""
    return importer.block_builder.emit(R.full(list(shape), constant(value, dtype), dtype))


def has_no_elements(x: Any, axes: Sequence[int] | None = None) -> bool:
    """Return whether some axes, or all, are known to have no elements."""
    shape = list(x.ty.shape)
    return any(int_value(shape[axis]) == 0 for axis in (range(len(shape)) if axes is None else axes))


def _numbers(index: Any, importer: Any) -> np.ndarray | None:
    """Return the numbers of a constant tensor in int64, or None for other tensors."""
    if isinstance(index, tvm.ir.GenericConst):
        return np.asarray(index.value.numpy()).astype("int64")
    value = getattr(importer, "constants", {}).get(index)  # TVM's own importer takes these converters too
    return None if value is None else value.detach().cpu().numpy().astype("int64")


def naturals(index: Any, extent: Any, importer: Any) -> Any:
    """Return indices that count from the front, in int64. Negative ones count from the end of an axis.

    A run checks that a symbolic extent is large enough for constant indices.

    Args:
        index: a tensor of integers.
        extent: the number of elements along the axis.
        importer: the importer of the program.

    Raises:
        OutOfRange: if a constant index lies outside of an extent.
    """
    emit = importer.block_builder.emit
    numbers, known = _numbers(index, importer), int_value(extent)
    if numbers is not None and numbers.size:
        low, high = int(numbers.min()), int(numbers.max())
        if known is None:
            require_extent(importer.block_builder, extent, max(high + 1, -low))
        elif not -known <= low <= high < known:
            raise OutOfRange(f"an index of {low}..{high} lies outside of the {known} elements of an axis")
    if numbers is not None and known is not None:
        return relax.const(np.where(numbers < 0, numbers + known, numbers), "int64")
    unsigned = type_name(index).startswith("uint")
    index = cast(index, "int64", importer)
    if unsigned:
        return index
    if known is None:
        length = emit(R.shape_to_tensor(relax.ShapeExpr([extent])))
    else:
        length = relax.const(known, "int64")
    before = emit(R.less(index, relax.const(0, "int64")))
    natural = emit(R.where(before, emit(R.add(index, length)), index))
    if known is None and not index.ty.shape:  # a symbolic extent is a tensor of one axis
        natural = emit(R.squeeze(natural, [0]))
    return natural
