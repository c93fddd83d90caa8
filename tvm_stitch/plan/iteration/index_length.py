# SPDX-License-Identifier: Apache-2.0
"""How long an index becomes when TVM lowers its divisions.

Where it cannot tell that dividend and divisor are not negative, TVM lowers a division by a symbol that floors to a
choice that repeats both operands. Nested divisions behind a difference (a flip, a slice from the end) grow by that
factor at each level: five of them take LLVM minutes.
"""

from __future__ import annotations

from ... import compat
from ...compat import Expr
from .. import heuristics


def too_long(index: Expr) -> bool:
    """Whether an index, in variables and symbols that are not negative, has more terms lowered than fit a kernel."""
    return _terms(index)[0] > heuristics.INDEX_TERMS


def _terms(e: Expr) -> tuple[int, bool]:
    """The terms of an expression lowered, as far as a kernel may hold them, and whether no term of it is negative."""
    value = compat.int_value(e)
    if value is not None:
        return 1, value >= 0
    name = compat.kind(e)
    if name in ("Var", "SizeVar"):
        return 1, True
    terms, signs = 1, []
    for operand in compat.operands(e):
        found, natural = _terms(operand)
        signs.append(natural)
        terms += found
        if terms > heuristics.INDEX_TERMS:
            return terms, False
    natural = name in ("Add", "Mul", "Min", "Max", "FloorDiv", "FloorMod") and all(signs)
    if name in ("FloorDiv", "FloorMod") and not natural and compat.int_value(e.b) is None:
        terms *= heuristics.DIVISION_COPIES
    return terms, natural
