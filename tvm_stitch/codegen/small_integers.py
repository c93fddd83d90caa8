# SPDX-License-Identifier: Apache-2.0
"""Floats of small unsigned integers, such as 4-bit weights, without a conversion.

A GPU converts integers at half or a quarter of its rate of additions. An integer below 2**23 in the lowest bits of the
float 2**23 makes the float 2**23 + integer, exactly. One subtraction leaves the integer, and may take the zero point
along: ``q - 7`` of a 4-bit weight costs a bitwise operation and an addition.
"""

from __future__ import annotations

from .. import compat
from ..compat import Expr, tir

_OFFSET = 1 << 23
_OFFSET_BITS = 0x4B000000
"""The bits of the float ``_OFFSET``."""
_FROM_BITS = "__uint_as_float"
"""CUDA's function from bits to a float."""
_EXACT = {"float16": 1 << 11, "bfloat16": 1 << 8, "float32": _OFFSET}
"""Integers up to which a type holds all of them."""


def float_of_masked(integer: Expr, value: Expr, dtype: str) -> Expr | None:
    """Return an integer as float32, if a mask bounds it so that ``dtype`` holds it exactly. Else return None.

    Args:
        integer: as the graph computes it, an integer of at most 32 bits.
        value: the same as it is evaluated.
        dtype: the type that the graph converts it to.
    """
    most = _mask(integer)
    if (
        most is None
        or most >= _EXACT.get(dtype, 0)
        or compat.dtype_of(value) not in ("uint32", "int32", "uint8")
    ):
        return None
    bits = value if compat.dtype_of(value) == "uint32" else tir.Cast("uint32", value)
    joined = tir.bitwise_or(bits, compat.const(_OFFSET_BITS, "uint32"))
    return tir.call_pure_extern("float32", _FROM_BITS, joined) - compat.float_const(float(_OFFSET), "float32")


def with_offset_joined(a: Expr, b: Expr) -> Expr | None:
    """Return ``a - b`` with one subtraction, if ``a`` is a float of a masked integer and ``b`` is a small integer."""
    if compat.kind(b) != "FloatImm" or not _is_float_of_masked(a):
        return None
    subtracted = float(b.value)
    if not subtracted.is_integer() or not 0 <= subtracted < _OFFSET // 2:
        return None
    return a.a - compat.float_const(_OFFSET + subtracted, "float32")


def _is_float_of_masked(value: Expr) -> bool:
    """Return True for what :func:`float_of_masked` returns. A float of the model is rounded by each subtraction."""
    if compat.kind(value) != "Sub" or compat.kind(value.b) != "FloatImm" or float(value.b.value) != _OFFSET:
        return False
    bits = value.a
    if compat.kind(bits) != "Call" or not len(bits.args) or compat.kind(bits.args[0]) != "StringImm":
        return False
    return str(bits.args[0].value) == _FROM_BITS


def _mask(integer: Expr) -> int | None:
    """Return the mask that an integer is cut with, if it is one of at most 32 bits."""
    if compat.kind(integer) == "Call" and compat.call_name(integer) == "bitwise_and":
        operands = list(integer.args)
    elif compat.kind(integer) == "BitwiseAnd":
        operands = [integer.a, integer.b]
    else:
        return None
    masks = [compat.int_value(each) for each in operands]
    found = [mask for mask in masks if mask is not None and mask >= 0]
    return min(found) if found else None
