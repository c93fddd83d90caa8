# SPDX-License-Identifier: Apache-2.0
"""Write strict bounds of integers as closed ones.

TVM keeps every term of ``1 <= 8 * n + i``. Strict upper bounds of sums without negative terms, as in the tail of a
loop, may stay.

Fault: TVM simplifies ``0 < 8 * n + i`` with ``0 <= i < 8`` to ``0 < n``. It drops terms below the common divisor of
    the rest on either side of a strict comparison, which is right on the smaller side only.
Seen in: TVM 0.17.dev0
Input: ``Select(0 < i * 8 + j, n, -1)`` for ``i < 3`` and ``j < 8``, target llvm
Upstream: none known
"""

from __future__ import annotations

from typing import Any

from ...compat import expressions as ir
from ...compat.expressions import Expr, tir

_COMPARISONS = ["tir.LT", "tir.GT", "tir.NE", "tir.Not"]


def closed_bounds(func: Any) -> Any:
    """Return the scheduled PrimFunc with closed bounds in place of strict bounds of integers."""
    return func.with_body(tir.stmt_functor.ir_transform(func.body, None, _closed, _COMPARISONS))


def with_closed_bounds(e: Expr) -> Expr:
    """Return an expression with closed bounds in place of strict bounds of integers."""
    e = ir.rebuild(e, with_closed_bounds)
    closed = _closed(e)
    return e if closed is None else closed


def _closed(e: Expr) -> Expr | None:
    """Return the comparison with closed bounds, or None if it stays as it is."""
    name = ir.kind(e)
    if name == "LT":
        return _below(e.a, e.b)
    if name == "GT":
        return _below(e.b, e.a)
    if name == "NE":
        return _other(e.a, e.b)
    if name == "Not":
        denied = ir.kind(e.a)
        if denied == "LE":
            return _below(e.a.b, e.a.a)
        if denied == "GE":
            return _below(e.a.a, e.a.b)
        if denied == "EQ":
            return _other(e.a.a, e.a.b)
    return None


def _below(a: Expr, b: Expr) -> Expr | None:
    """Return ``a < b`` in closed bounds, or None if it stays as it is."""
    if not _are_indices(a, b):
        return None
    low, high = ir.int_value(a), ir.int_value(b)
    dtype = ir.dtype_of(a)
    if low is not None:
        return None if high is not None or low >= _greatest(dtype) else tir.LE(ir.const(low + 1, dtype), b)
    if high is not None:
        return tir.LE(a, ir.const(high - 1, dtype)) if _subtracts(a) and high > -_greatest(dtype) else None
    if ir.has_load(a) or ir.has_load(b):  # their difference may overflow
        return None
    return tir.LE(ir.const(1, dtype), b - a)  # the simplifier turns ``a + 1 <= b`` into ``a < b``


def _other(a: Expr, b: Expr) -> Expr | None:
    """Return ``a != b`` in closed bounds, or None if it stays as it is.

    TVM turns ``a != b`` into a strict bound if ``b`` is the least or the greatest value of ``a``.
    """
    value = ir.int_value(b)
    if value is None or ir.int_value(a) is not None or not _are_indices(a, b) or ir.has_load(a):
        return None
    dtype = ir.dtype_of(a)
    return tir.Or(tir.LE(a, ir.const(value - 1, dtype)), tir.LE(ir.const(value + 1, dtype), a))


def _are_indices(a: Expr, b: Expr) -> bool:
    """Return whether both are of the dtypes that indices have."""
    return ir.dtype_of(a) in ("int32", "int64") and ir.dtype_of(b) == ir.dtype_of(a)


def _greatest(dtype: str) -> int:
    return 2 ** (int(dtype[3:]) - 1) - 1


def _subtracts(e: Expr) -> bool:
    """Return True if a sum may have negative terms."""
    name = ir.kind(e)
    if name == "Sub":
        return ir.int_value(e.b) is None or _subtracts(e.a)
    if name == "Add":
        return _subtracts(e.a) or _subtracts(e.b)
    if name == "Mul":
        factor = ir.int_value(e.b)
        return factor is None or factor < 0 or _subtracts(e.a)
    return False
