# SPDX-License-Identifier: Apache-2.0
"""The factors of a weight's expression: floats, and one integer with the numbers that are subtracted from it."""

from __future__ import annotations

from collections.abc import Iterator

from ... import compat
from ...compat import Expr
from ...graph.dtype import item_bytes

LARGEST = 256
"""Integers up to which bfloat16 holds all of them."""


class Unknown(Exception):
    """A weight of another form than :class:`~.fields.PackedWeight`. The text says which."""


def as_float32(value: Expr) -> Expr:
    return value if compat.dtype_of(value) == "float32" else compat.tir.Cast("float32", value)


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def _widens(value: Expr) -> bool:
    """Return whether a conversion between floats loses nothing."""
    before, after = compat.dtype_of(value.value), compat.dtype_of(value)
    return before == after or (item_bytes(before) < item_bytes(after) and _is_float(before))


def factors_of(value: Expr) -> Iterator[Expr]:
    """Yield the factors of a product of floats. Conversions that lose nothing are left out."""
    name = compat.kind(value)
    if name == "Mul":
        yield from factors_of(value.a)
        yield from factors_of(value.b)
    elif name == "Cast" and _widens(value) and _is_float(compat.dtype_of(value)):
        yield from factors_of(value.value)
    else:
        yield value


def is_integer(value: Expr) -> bool:
    """Return whether a factor is an integer: a conversion of one, or the difference of such numbers."""
    name = compat.kind(value)
    if name == "Cast":
        return not _is_float(compat.dtype_of(value.value)) or is_integer(value.value)
    if name == "Sub":
        return is_integer(value.a)
    return False


def is_small(value: Expr) -> bool:
    """Return whether an integer has at most 8 bits: those of its type, or of a mask."""
    while compat.kind(value) == "Cast":
        value = value.value
    if item_bytes(compat.dtype_of(value)) == 1:
        return True
    masks = (
        [compat.int_value(e) for e in compat.operands(value)] if compat.kind(value) == "BitwiseAnd" else []
    )
    return any(mask is not None and 0 <= mask < LARGEST for mask in masks)


def parts_without_loads(value: Expr) -> Iterator[Expr]:
    """Yield the largest parts of an expression that have variables, and no loads."""
    if compat.is_load(value):
        return
    if not compat.has_load(value):
        if compat.free_vars(value):
            yield value
        return
    for part in compat.operands(value):
        yield from parts_without_loads(part)


def difference_of(value: Expr) -> tuple[Expr, int, Expr | None]:
    """Return the field of an integer factor, and the number and the integer that are subtracted from it."""
    name, dtype = compat.kind(value), compat.dtype_of(value)
    if name == "Cast" and _is_float(dtype):
        return difference_of(value.value)
    if name == "Cast" and compat.kind(value.value) == "Sub" and item_bytes(dtype) >= 2:
        return difference_of(value.value)
    if name != "Sub":
        return value, 0, None
    if dtype.startswith("uint") or (dtype.startswith("int") and item_bytes(dtype) < 2):
        raise Unknown(f"zero points are subtracted in {dtype}")
    integer, zero, own = difference_of(value.a)
    subtracted = value.b
    while compat.kind(subtracted) == "Cast":
        subtracted = subtracted.value
    if compat.kind(subtracted) not in ("FloatImm", "IntImm"):
        if own is not None or _is_float(compat.dtype_of(subtracted)):
            raise Unknown("zero points that are no integers")
        return integer, zero, subtracted
    number = float(subtracted.value)
    if not number.is_integer():
        raise Unknown(f"a zero point of {number}")
    return integer, zero + int(number), own
