# SPDX-License-Identifier: Apache-2.0
"""Floats of small unsigned integers, such as 4-bit weights, without a conversion.

A GPU converts integers at half or a quarter of its rate of additions. An integer below 2**23 in the lowest bits of the
float 2**23 makes the float 2**23 + integer, exactly. One subtraction leaves the integer, and may take the zero point
along: ``q - 7`` of a 4-bit weight costs a bitwise operation and an addition. A CPU needs one instruction less for it
too: on a Xeon with AVX-512, one row by 4,096 x 4,096 such weights took 0.7 of the time.
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


def float_of_masked(integer: Expr, value: Expr, dtype: str, on_device: bool = True) -> Expr | None:
    """Return an integer as float32, if a mask bounds it so that ``dtype`` holds it exactly. Else return None.

    Args:
        integer: as the graph computes it, an integer of at most 32 bits.
        value: the same as it is evaluated.
        dtype: the type that the graph converts it to.
        on_device: whether the kernel is CUDA C. Else it is for llvm.
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
    shifted = (
        tir.call_pure_extern("float32", _FROM_BITS, joined)
        if on_device
        else tir.reinterpret("float32", joined)
    )
    return shifted - compat.float_const(float(_OFFSET), "float32")


def is_exact(integer: Expr, dtype: str) -> bool:
    """Return whether a float type holds all integers of an expression's type."""
    kind = compat.dtype_of(integer)
    bits = int(kind[-1]) if kind in ("int8", "uint8") else 0
    return 0 < bits and 1 << bits <= _EXACT.get(dtype, 0)


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
    if compat.kind(bits) != "Call" or not len(bits.args):
        return False
    (first, *_) = bits.args
    if compat.kind(first) == "StringImm":
        return str(first.value) == _FROM_BITS
    return compat.call_name(bits) == "reinterpret" and _OFFSET_BITS in _numbers("or", first)


def _mask(integer: Expr) -> int | None:
    """Return the mask that an integer is cut with, if it is one of at most 32 bits."""
    masks = [mask for mask in _numbers("and", integer) if mask >= 0]
    return min(masks) if masks else None


def _numbers(operation: str, integer: Expr) -> list[int]:
    """Return the numbers among the operands of a bitwise operation, none if an integer is computed otherwise."""
    if compat.kind(integer) == f"Bitwise{operation.title()}":
        operands = [integer.a, integer.b]
    elif compat.kind(integer) == "Call" and compat.call_name(integer) == f"bitwise_{operation}":
        operands = list(integer.args)
    else:
        return []
    return [number for number in map(compat.int_value, operands) if number is not None]
