# SPDX-License-Identifier: Apache-2.0
"""Write booleans as conditions. TOPI's ``where`` casts its condition to an integer, and compares that with 0.

TVM's simplifier visits the operands of a comparison several times. If a condition depends on values that conditions
chose, as in the steps of a running maximum, its time is a power of the number of steps: each such comparison counts.
"""

from __future__ import annotations

from ... import compat
from ...compat import Expr

_BOOLEANS = ("bool", "uint1")


def plain_conditions(value: Expr) -> Expr:
    """Return an expression with ``b`` for ``0 < int64(b)`` and ``int64(b) != 0``, where ``b`` is a boolean."""

    def visit(e: Expr) -> Expr:
        made = compat.rebuild(e, visit)
        boolean = None
        if compat.kind(made) == "LT" and compat.int_value(made.a) == 0:
            boolean = _boolean(made.b)
        elif compat.kind(made) == "NE" and compat.int_value(made.b) == 0:
            boolean = _boolean(made.a)
        return made if boolean is None else boolean

    return visit(value) if _casts_booleans(value) else value


def _boolean(e: Expr) -> Expr | None:
    """Return the boolean that an expression casts to an integer, or None."""
    casts = compat.kind(e) == "Cast" and compat.dtype_of(e.value) in _BOOLEANS and "int" in compat.dtype_of(e)
    return e.value if casts else None


def _casts_booleans(value: Expr) -> bool:
    return _boolean(value) is not None or any(map(_casts_booleans, compat.operands(value)))
