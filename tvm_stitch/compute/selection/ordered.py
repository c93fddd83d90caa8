# SPDX-License-Identifier: Apache-2.0
"""An element and its index as one integer of 64 bits, whose order is that of a sort.

The upper bits are the element as an integer of the same order, NaN above all numbers. The lower 31 bits count down from
the first index. So no two elements are equal, and the first of equal elements comes first. ``NOTHING`` is less than the
integer of any element.
"""

from __future__ import annotations

from typing import Any

from ... import compat
from ...compat import tir

NARROW = ("float16", "bfloat16", "float32", "int8", "uint8", "int16", "uint16", "int32", "uint32")
"""Types whose values fit the upper bits."""

INDEX_BITS = 31
LAST_INDEX = 2**INDEX_BITS - 1
"""The largest index."""

NOTHING = -(2**63)


def joined(value: Any, dtype: str, index: Any, largest: bool) -> Any:
    """Return the integer of an element and its index.

    Args:
        value: the element, an expression of a type of ``NARROW``.
        dtype: its type.
        index: its index, an integer expression.
        largest: whether the largest elements have the largest integers, else the smallest have.
    """
    return with_index(order_of(value, dtype, largest), index)


def with_index(order: Any, index: Any) -> Any:
    """Return the integer of an element's order, as :func:`order_of` gives it, and an index."""
    place = _i64(LAST_INDEX) - tir.Cast("int64", index)
    return tir.Cast("int64", order) * _i64(1 << INDEX_BITS) + place


def order_of(value: Any, dtype: str, largest: bool) -> Any:
    """Return an int32 in the order of the values, or in the opposite order unless the largest are taken."""
    if "float" not in dtype:
        wide = tir.Cast("int64", value) - _middle(dtype)
        return _directed(tir.Cast("int32", wide), largest)
    wide = value if dtype == "float32" else tir.Cast("float32", value)
    # Both zeros are one number.
    zero = compat.const(0.0, "float32")
    bits = tir.reinterpret("int32", tir.Select(tir.EQ(wide, zero), zero, wide))
    order = tir.Select(tir.isnan(wide), compat.const(LAST_INDEX, "int32"), _turned(bits))
    return _directed(order, largest)


def element(both: Any, dtype: str, largest: bool) -> Any:
    """Return the element of an integer that :func:`joined` made. A negative zero is zero."""
    order = _directed(tir.Cast("int32", both >> _i64(INDEX_BITS)), largest)
    if "float" not in dtype:
        return tir.Cast(dtype, tir.Cast("int64", order) + _middle(dtype))
    value = tir.reinterpret("float32", _turned(order))
    return value if dtype == "float32" else tir.Cast(dtype, value)


def index(both: Any, dtype: str) -> Any:
    """Return the index of an integer that :func:`joined` made."""
    return tir.Cast(dtype, _i64(LAST_INDEX) - (both & _i64(LAST_INDEX)))


def _i64(value: int) -> Any:
    return compat.const(value, "int64")


def _directed(order: Any, largest: bool) -> Any:
    """Return integers in the opposite order, unless the largest are taken. Twice, it is the identity."""
    return order if largest else compat.const(-1, "int32") - order


def _middle(dtype: str) -> Any:
    """Return the integer that is subtracted from values of a type, so that they are in the range of int32."""
    return _i64(2**31 if dtype == "uint32" else 0)


def _turned(bits: Any) -> Any:
    """Return the bits of floats as integers in the floats' order, or the bits of such integers."""
    negative = tir.LT(bits, compat.const(0, "int32"))
    return tir.Select(negative, bits ^ compat.const(LAST_INDEX, "int32"), bits)
