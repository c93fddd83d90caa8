# SPDX-License-Identifier: Apache-2.0
"""Divisions of indices by symbolic extents, evaluated if the result is known.

``(outer * n + inner) // n`` is ``outer`` for ``0 <= inner < n``. TVM's simplifier misses this, the more so if the
extent is derived, as ``(n - 1) // 2 + 1``. It also misses that ``outer * (n * 8 + 8)`` is a multiple of 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .. import compat
from ..compat import Expr, Var, has_load
from .extent import Extent, bounded
from .index_equality import Prover, Unproved
from .polynomial import Polynomial, TooLarge, add, as_constant


class Divisions:
    """Facts about the indices of one space. Results for one index are kept for the next.

    Args:
        axes: every axis variable with its extent. A variable runs from 0 to below its extent.
        sizes: other extents that are at least 1.
    """

    def __init__(self, axes: Sequence[tuple[Var, Extent]], sizes: Iterable[Extent] = ()):
        self._axes, self._sizes = axes, sizes
        self._known: Prover | None = None

    def _prover(self) -> Prover:
        """Return the prover of the space, with its step counter reset."""
        if self._known is None:
            self._known = Prover(self._axes, self._sizes)
        self._known.steps = 0
        return self._known

    def divided(self, e: Expr) -> Expr:
        """Return an index without the divisions and modulo terms that are known.

        Divisions by symbols are replaced if their result is known. Multiples of a modulo's divisor are dropped.
        Loads from tensors stay as they are.

        Args:
            e: an int64 expression over axes and symbols.
        """
        return _Divider(self._prover()).visit(e) if _divides(e) else e

    def constant_step(self, after: Expr, before: Expr) -> int | None:
        """Return the difference of two indices if it is the same number at every point of the space, else None."""
        try:
            prover = self._prover()
            return as_constant(add(prover.polynomial(after), prover.polynomial(before), -1))
        except (Unproved, TooLarge):
            return None


def changes_with(var: Var, indices: Iterable[Expr], axes: Sequence[tuple[Var, Extent]]) -> bool:
    """Return whether one of the indices may change with an axis variable.

    Args:
        var: one of the axes.
        indices: int64 expressions over axes and symbols.
        axes: every axis variable with its extent.
    """
    analyzer, divisions = bounded(axes), Divisions(axes)
    return any(var in compat.free_vars(analyzer.simplify(divisions.divided(index))) for index in indices)


def _divides(e: Expr) -> bool:
    """Return whether the expression divides by a symbol, or takes products of symbols modulo a number."""
    divisions = (part for part in compat.parts(e) if compat.kind(part) in ("FloorDiv", "FloorMod"))
    return any(compat.int_value(division.b) is None or _is_of_products(division) for division in divisions)


def _is_of_products(division: Expr) -> bool:
    """Return whether the expression is a modulo of a product of two non-constants.

    TVM's simplifier multiplies out none of these.
    """
    return compat.kind(division) == "FloorMod" and any(
        compat.kind(part) == "Mul" and compat.int_value(part.a) is None and compat.int_value(part.b) is None
        for part in compat.parts(division.a)
    )


class _Divider:
    def __init__(self, prover: Prover):
        self.prover = prover

    def visit(self, e: Expr) -> Expr:
        """Return the expression with its divisions evaluated, inner ones first."""
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
        """Return ``e % divisor`` without the terms of ``e`` that are multiples of it, or None if there are no such
        terms.
        """
        whole = self.prover.polynomial(e)
        rest = {monomial: number for monomial, number in whole.items() if number % divisor}
        reduced = None if len(rest) == len(whole) else self._expression(rest)
        return None if reduced is None else compat.tir.floormod(reduced, compat.const(divisor, "int64"))

    def _expression(self, p: Polynomial) -> Expr | None:
        """Return the expression of a polynomial, or None if it holds a quotient by a symbol that varies along an
        axis.
        """
        known = {number: key for key, number in self.prover.number.items()}
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
