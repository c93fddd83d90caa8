# SPDX-License-Identifier: Apache-2.0
"""How long an index becomes when TVM lowers its divisions.

Where it cannot tell that dividend and divisor are not negative, TVM lowers a division by a symbol that floors to a
choice that repeats both operands. Nested divisions behind a difference (a flip, a slice from the end) grow by that
factor at each level: five of them take LLVM minutes.
"""

from __future__ import annotations

from ... import compat
from ...compat import Expr
from ...cost.choices import Choices

_DIVISION_COPIES = 4


def too_long(index: Expr, choices: Choices) -> bool:
    """Whether an index, in variables and symbols that are not negative, has more terms lowered than fit a kernel."""
    return _terms(index, choices.index_terms)[0] > choices.index_terms


def _terms(e: Expr, most: int) -> tuple[int, bool]:
    """The terms of an expression lowered, counted up to ``most``, and whether no term of it is negative."""
    value = compat.int_value(e)
    if value is not None:
        return 1, value >= 0
    name = compat.kind(e)
    if name in ("Var", "SizeVar"):
        return 1, True
    terms, signs = 1, []
    for operand in compat.operands(e):
        found, natural = _terms(operand, most)
        signs.append(natural)
        terms += found
        if terms > most:
            return terms, False
    natural = name in ("Add", "Mul", "Min", "Max", "FloorDiv", "FloorMod") and all(signs)
    if name in ("FloorDiv", "FloorMod") and not natural and compat.int_value(e.b) is None:
        terms *= _DIVISION_COPIES
    return terms, natural
