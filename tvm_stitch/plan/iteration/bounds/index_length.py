# SPDX-License-Identifier: Apache-2.0
"""The length of an index after TVM lowers its divisions.

If TVM cannot prove that dividend and divisor are not negative, it lowers a floor division by a symbol to a choice.
The choice repeats both operands. Nested divisions behind a difference (a flip, a slice from the end) grow by that
factor at each level. Five of them take LLVM minutes.
"""

from __future__ import annotations

from .... import compat
from ....compat import Expr
from ....cost.choices import Choices

_DIVISION_COPIES = 4


def too_long(index: Expr, choices: Choices) -> bool:
    """Return whether an index has more terms when lowered than fit a kernel.

    Its variables and symbols are not negative.
    """
    return _terms(index, choices.index_terms)[0] > choices.index_terms


def _terms(e: Expr, most: int) -> tuple[int, bool]:
    """Return the terms of a lowered expression, counted up to ``most``, and whether no term of it is negative."""
    value = compat.int_value(e)
    if value is not None:
        return 1, value >= 0
    name = compat.kind(e)
    if name in ("Var", "SizeVar"):
        return 1, True
    terms, signs = 1, []
    for operand in compat.operands(e):
        more, natural = _terms(operand, most)
        signs.append(natural)
        terms += more
        if terms > most:
            return terms, False
    natural = name in ("Add", "Mul", "Min", "Max", "FloorDiv", "FloorMod") and all(signs)
    if name in ("FloorDiv", "FloorMod") and not natural and compat.int_value(e.b) is None:
        terms *= _DIVISION_COPIES
    return terms, natural
