# SPDX-License-Identifier: Apache-2.0
"""Divisions of indices by symbolic extents, carried out where it is known what they give.

``(outer * n + inner) // n`` is ``outer`` for ``0 <= inner < n``: TVM's simplifier does not see it, and less where the
extent is derived, as ``(n - 1) // 2 + 1``. Nor does it see that ``outer * (n * 8 + 8)`` is a multiple of 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .. import compat
from ..compat import Expr, Var, has_load
from .extent import Extent
from .index_equality import Prover, Unproved
from .polynomial import Polynomial, TooLarge, add, as_constant


class Divisions:
    """What is known of the indices of one space; what was found for one answers for others.

    Args:
        axes: every axis variable with its extent; it runs from 0 to below that.
        sizes: what is at least 1 besides.
    """

    def __init__(self, axes: Sequence[tuple[Var, Extent]], sizes: Iterable[Extent] = ()):
        self._axes, self._sizes = axes, sizes
        self._known: Prover | None = None

    def _prover(self) -> Prover:
        """The prover of the space, with all its steps before it."""
        if self._known is None:
            self._known = Prover(self._axes, self._sizes)
        self._known.steps = 0
        return self._known

    def divided(self, e: Expr) -> Expr:
        """An index without the divisions by symbols whose result is known, and without multiples of what it is modulo.

        ``e`` is an int64 expression over axes and symbols; what it reads from tensors stays as it is.
        """
        return _Divider(self._prover()).visit(e) if _divides(e) else e

    def constant_step(self, after: Expr, before: Expr) -> int | None:
        """The difference of two indices, where it is one number at every point of the space."""
        try:
            prover = self._prover()
            return as_constant(add(prover.polynomial(after), prover.polynomial(before), -1))
        except (Unproved, TooLarge):
            return None


def _divides(e: Expr) -> bool:
    """Is anything divided by a symbol, or a product of symbols modulo a number?"""
    divisions = (part for part in compat.parts(e) if compat.kind(part) in ("FloorDiv", "FloorMod"))
    return any(compat.int_value(division.b) is None or _is_of_products(division) for division in divisions)


def _is_of_products(division: Expr) -> bool:
    """Is it the rest of something with a product of two that are no numbers? TVM's simplifier multiplies none out."""
    return compat.kind(division) == "FloorMod" and any(
        compat.kind(part) == "Mul" and compat.int_value(part.a) is None and compat.int_value(part.b) is None
        for part in compat.parts(division.a)
    )


class _Divider:
    def __init__(self, prover: Prover):
        self.prover = prover

    def visit(self, e: Expr) -> Expr:
        """The expression with its divisions carried out, inner ones first."""
        e = compat.rebuild(e, self.visit)
        if compat.kind(e) not in ("FloorDiv", "FloorMod") or has_load(e):
            return e
        divisor = compat.int_value(e.b)
        if divisor is not None and (divisor < 1 or not _is_of_products(e)):
            return e
        try:
            result = (
                self._expression(self.prover.polynomial(e)) if divisor is None else self._rest(e.a, divisor)
            )
        except (Unproved, TooLarge):
            return e
        return e if result is None else result

    def _rest(self, e: Expr, divisor: int) -> Expr | None:
        """``e % divisor`` without terms that are multiples of it; None where there are none."""
        whole = self.prover.polynomial(e)
        rest = {monomial: number for monomial, number in whole.items() if number % divisor}
        found = None if len(rest) == len(whole) else self._expression(rest)
        return None if found is None else compat.tir.floormod(found, compat.const(divisor, "int64"))

    def _expression(self, p: Polynomial) -> Expr | None:
        """The expression of a polynomial; None where it holds a quotient by a symbol that varies along an axis."""
        known = {number: what for what, number in self.prover.number.items()}
        total: Expr | None = None
        for monomial, coefficient in p.items():
            term = compat.const(abs(coefficient), "int64")
            for number in monomial:
                factor = self._unknown(number, known.get(number))
                if factor is None:
                    return None
                term = factor if compat.int_value(term) == 1 else term * factor
            if total is None:
                total = term if coefficient > 0 else compat.const(0, "int64") - term
            else:
                total = total + term if coefficient > 0 else total - term
        return compat.const(0, "int64") if total is None else total

    def _unknown(self, number: int, what: object) -> Expr | None:
        if not isinstance(what, tuple):
            return None
        if what[0] == "var":
            return what[1]
        if what[0] != "quotient":
            return None
        dividend, divisor = self.prover.quotient_of[number]
        if number in self.prover.on_axes and as_constant(divisor) is None:
            return None
        a, b = self._expression(dividend), self._expression(divisor)
        return None if a is None or b is None else compat.tir.floordiv(a, b)
