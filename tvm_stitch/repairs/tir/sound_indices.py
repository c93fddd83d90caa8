# SPDX-License-Identifier: Apache-2.0
"""Rewrite index divisions that TVM's index normalization gets wrong.

TVM leaves divisions that truncate as they are, so such divisions are written to truncate.

Fault: TVM normalizes the index of every access when it flattens buffers. It gets some divisions wrong whose dividend
    it pads to a multiple of the divisor. ``(3 - i) // 2`` becomes ``i // -2 + 1``, which is 0 and not 1 at ``i = 1``.
Seen in: TVM 0.27.0
Input: ``iter_map_simplify`` of ``(3 - i) // 2`` with ``0 <= i < 3``
Upstream: https://github.com/apache/tvm/issues/19524
"""

from __future__ import annotations

from collections.abc import Collection

from ... import compat
from ...compat import Expr, Var, tir
from .truncated import truncated

_DIVISIONS = ("FloorDiv", "FloorMod")


def sound_index(index: Expr, signed: Collection[Var] = ()) -> Expr:
    """Return an index that is equal at every point, and that TVM normalizes soundly.

    Args:
        index: an index of loop variables, lanes and extents, which are not negative. Its divisors are positive.
        signed: the variables that may be negative.
    """
    return truncated(_rising(index), signed, by_numbers=True) if is_padded(index) else index


def is_padded(e: Expr) -> bool:
    """Return True if the dividend of a division falls, or has an offset and contains another division."""
    for part in compat.parts(e):
        if compat.kind(part) in _DIVISIONS and compat.dtype_of(part).startswith("int"):
            terms: list[tuple[int, Expr]] = []
            start = _take_apart(part.a, 1, terms)
            if any(scale < 0 or (start and divides(term)) for scale, term in terms):
                return True
    return False


def divides(e: Expr) -> bool:
    """Return True if an index contains a division or a remainder."""
    return any(compat.kind(part) in _DIVISIONS for part in compat.parts(e))


def _rising(index: Expr) -> Expr:
    """Return an index that is equal at every point, with no negative term in a dividend."""
    index = compat.rebuild(index, _rising)
    if compat.kind(index) not in _DIVISIONS or not compat.dtype_of(index).startswith("int"):
        return index
    terms: list[tuple[int, Expr]] = []
    start = _take_apart(index.a, 1, terms)
    divisor = index.b
    number = compat.int_value(divisor)
    if (start >= 0 and all(scale > 0 for scale, _ in terms)) or (number is not None and number <= 0):
        return index
    dtype = compat.dtype_of(index)
    one = compat.const(1, dtype)
    falls = _sum([(-scale, e) for scale, e in terms if scale < 0], dtype)
    rises = [(scale, e) for scale, e in terms if scale > 0]
    if rises:  # a multiple of the divisor is added to the falling terms
        whole = start // number if number is not None else 0
        more = compat.const(number - 1, dtype) if number is not None else divisor - one
        rest = compat.const(start - whole * number if number is not None else start, dtype)
        dividend = _sum(rises, dtype) + falls * more + rest
        if compat.kind(index) == "FloorMod":
            return tir.FloorMod(dividend, divisor)
        return tir.FloorDiv(dividend, divisor) - falls + compat.const(whole, dtype)
    if number is None:  # counted from the other end
        whole, rest = compat.const(0, dtype), divisor - compat.const(start + 1, dtype)
    else:
        whole, rest = compat.const(start // number, dtype), compat.const(number - 1 - start % number, dtype)
    if compat.kind(index) == "FloorMod":
        return divisor - one - tir.FloorMod(falls + rest, divisor)
    return whole - tir.FloorDiv(falls + rest, divisor)


def _take_apart(e: Expr, scale: int, terms: list[tuple[int, Expr]]) -> int:
    """Append the terms of a sum, each with its factor, and return the number in the sum."""
    value = compat.int_value(e)
    if value is not None:
        return scale * value
    name = compat.kind(e)
    if name in ("Add", "Sub"):
        return _take_apart(e.a, scale, terms) + _take_apart(e.b, scale if name == "Add" else -scale, terms)
    if name == "Mul":
        for factor, other in ((e.a, e.b), (e.b, e.a)):
            value = compat.int_value(factor)
            if value == 0:
                return 0
            if value is not None:
                return _take_apart(other, scale * value, terms)
    terms.append((scale, e))
    return 0


def _sum(terms: list[tuple[int, Expr]], dtype: str) -> Expr:
    result = compat.const(0, dtype)
    for scale, e in terms:
        result = result + (e if scale == 1 else e * compat.const(scale, dtype))
    return result
