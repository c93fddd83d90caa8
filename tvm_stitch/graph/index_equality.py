# SPDX-License-Identifier: Apache-2.0
"""Proof that two index expressions with symbolic extents are equal at every point at which they are evaluated.

TVM's simplifier cannot cancel divisions by symbols, so it proves almost nothing about a symbolic reshape. Here both
expressions become polynomials over axes, symbols and quotients. Chains of reshapes share one form of them:

- ``x % q`` becomes ``x - q * (x // q)``, so that the digits of a mixed-radix number add up to the number again.
- Multiples of ``q`` leave the quotient ``x // q``, and quotients of quotients become one.
- A factor common to ``q`` and the leading part of ``x`` is divided out if the rest of ``x`` is provably below it.
- A value that provably lies in ``0 .. q - 1`` has the quotient 0.

Expressions are equal if the difference of their polynomials is 0. Bounds follow from ``0 <= v < extent`` of the
axes. Nothing is assumed about symbols: they may be equal, zero or negative. But an expression is evaluated only at
points of its index space. At such a point every axis has an extent of at least 1. So has every dimension of a
tensor that has as many elements as some of the axes have points. Over an empty space every claim is true.

An unproved equality counts as an inequality. A proof has a limited number of steps, which bounds its time by the
size of the expressions.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from math import gcd

from .. import compat
from ..compat import Expr, Var
from .extent import Extent
from .polynomial import (
    Key,
    Polynomial,
    TooLarge,
    add,
    as_constant,
    coefficient_of,
    common,
    constant,
    content,
    divide,
    key,
    multiply,
    substitute,
    unknown,
    unknowns,
    without,
)

MOST_STEPS = 600
"""Limit of steps (quotients and bounds) of one proof."""

ONE = constant(1)


class Unproved(ValueError):
    """The expression reads a tensor, or the proof takes too many steps."""


def equal_indices(a: Expr, b: Expr, axes: Sequence[tuple[Var, Extent]], sizes: Iterable[Extent] = ()) -> bool:
    """Return whether two index expressions are provably equal at every point of the space, for all values of
    symbols.

    Args:
        a: an int32 or int64 expression over axes and symbols.
        b: another one.
        axes: every axis variable with its extent. A variable runs from 0 to below its extent.
        sizes: other extents that are at least 1 whenever the space is not empty.

    Returns:
        True if equality is proved. False if the expressions differ, read a tensor, or need too many steps.
    """
    try:
        prover = Prover(axes, sizes)
        return not add(prover.polynomial(a), prover.polynomial(b), -1)
    except (Unproved, TooLarge):
        return False


class Prover:
    """Polynomials of expressions over one index space.

    Unknowns are numbered. They represent axes, symbols, quotients, other operations, and *slacks*, which are
    arbitrary numbers from 0 on. ``slack_form`` describes an unknown that depends on no axis as a polynomial in
    slacks.
    """

    def __init__(self, axes: Sequence[tuple[Var, Extent]], sizes: Iterable[Extent]):
        self.steps = 0
        self.count = 0
        self.number: dict[Hashable, int] = {}
        self.quotient_of: dict[int, tuple[Polynomial, Polynomial]] = {}
        """Dividend and divisor by quotient. The divisor is positive and depends on no axis."""
        self.known: dict[tuple[Key, Key], Polynomial] = {}
        """Quotients computed so far."""
        self.extent_of: dict[int, Polynomial] = {}
        self.on_axes: set[int] = set()
        self.slacks: set[int] = set()
        self.slack_form: dict[int, Polynomial] = {}
        self.factors: list[Polynomial] = []
        for var, _ in axes:
            self.on_axes.add(self._number(("var", var)))
        extents = [e for _, e in axes]
        # Plain symbols first, because other extents may divide by them.
        known = [*extents, *sizes]
        self._assume([self._extent(e) for e in known if not _is_divided(e)])
        self._assume([self._extent(e) for e in known])
        for var, extent in axes:
            self.extent_of[self.number["var", var]] = self._extent(extent)

    # -- expressions ----------------------------------------------------------------------------------------------
    def polynomial(self, e: Expr) -> Polynomial:
        """Return the polynomial of an integer expression."""
        name = compat.kind(e)
        if name == "IntImm":
            return constant(int(e.value))
        if name in ("Var", "SizeVar"):
            return unknown(self._number(("var", e)))
        if name == "Cast" and _widens(compat.dtype_of(e.value), compat.dtype_of(e)):
            return self.polynomial(e.value)
        if name not in ("Add", "Sub", "Mul", "FloorDiv", "FloorMod", "Min", "Max"):
            return self._opaque(e)
        a, b = self.polynomial(e.a), self.polynomial(e.b)
        if name == "Mul":
            return multiply(a, b)
        if name == "FloorDiv":
            return self._quotient(a, b)
        if name == "FloorMod":
            return add(a, multiply(b, self._quotient(a, b)), -1)
        if name in ("Min", "Max"):
            return self._other(name, *sorted([a, b], key=key))
        return add(a, b, 1 if name == "Add" else -1)

    def _opaque(self, e: Expr) -> Polynomial:
        """Return the unknown of an expression of any other kind, such as a ``Select``. It equals only itself.

        Raises:
            Unproved: if the expression reads a tensor.
        """
        if compat.has_load(e):
            raise Unproved(compat.kind(e))
        number = self._number(("expression", compat.expression_key(e)))
        if any(self.number.get(("var", var)) in self.on_axes for var in compat.free_vars(e)):
            self.on_axes.add(number)
        return unknown(number)

    def _extent(self, extent: Extent) -> Polynomial:
        return constant(extent) if isinstance(extent, int) else self.polynomial(extent)

    def _number(self, key: Hashable) -> int:
        if key not in self.number:
            self.number[key] = self._new()
        return self.number[key]

    def _new(self) -> int:
        self.count += 1
        return self.count

    def _other(self, name: str, a: Polynomial, b: Polynomial) -> Polynomial:
        """Return the unknown of an operation that is known by its operands only."""
        number = self._number((name, key(a), key(b)))
        if (unknowns(a) | unknowns(b)) & self.on_axes:
            self.on_axes.add(number)
        return unknown(number)

    def _step(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Unproved("too many steps")

    # -- quotients ------------------------------------------------------------------------------------------------
    def _quotient(self, p: Polynomial, q: Polynomial) -> Polynomial:
        """Return ``p // q``. If ``q`` may be 0 or negative, the result is known by its operands only."""
        if not p and q:
            return {}
        pair = key(p), key(q)
        if pair not in self.known:
            self._step()
            if self._is_positive(q):
                whole, rest = divide(p, q)
                self.known[pair] = add(whole, self._proper(rest, q))
            else:
                self.known[pair] = self._other("FloorDiv", p, q)
        return self.known[pair]

    def _proper(self, p: Polynomial, q: Polynomial) -> Polynomial:
        """Return ``p // q`` for a positive ``q`` of which ``p`` holds no multiple."""
        if not p or self._is_digit(p, q):
            return {}
        if min(p.values()) < 0 and self._is_digit(add(p, q), q):
            return constant(-1)
        for monomial, coefficient in p.items():
            if coefficient == 1 and len(monomial) == 1 and monomial[0] in self.quotient_of:
                # (a + c // d) // q = (a * d + c) // (d * q)
                c, d = self.quotient_of[monomial[0]]
                a = {m: k for m, k in p.items() if m != monomial}
                return self._quotient(add(multiply(a, d), c), multiply(d, q))
        for factor in self._common_factors(p, q):
            # (f * a + c) // (f * b) = a // b for 0 <= c < f
            a, c = divide(p, factor)
            b, left = divide(q, factor)
            if a and not left and self._is_digit(c, factor):
                return self._quotient(a, b)
        number = self._number(("quotient", key(p), key(q)))
        if number not in self.quotient_of:
            self.quotient_of[number] = p, q
            if (unknowns(p) | unknowns(q)) & self.on_axes:
                self.on_axes.add(number)
            elif number not in self.slack_form and self._is_natural(p):
                self._define(number, unknown(self._slack()))
        return unknown(number)

    def _common_factors(self, p: Polynomial, q: Polynomial) -> Iterator[Polynomial]:
        """Yield the factors of ``q`` that divide terms of ``p``, greatest first."""
        whole, powers = content(q)
        candidates: dict[tuple[int, int, tuple[int, ...]], None] = {}
        for monomial, coefficient in p.items():
            shared = common(powers, monomial)
            number = gcd(whole, coefficient)
            if shared or number != 1:
                candidates[(len(shared), number, shared)] = None
        yield from (f for f in self.factors if not divide(q, f)[1])
        for _, number, shared in sorted(candidates, reverse=True):
            yield {shared: number}

    # -- bounds ---------------------------------------------------------------------------------------------------
    def _is_digit(self, p: Polynomial, radix: Polynomial) -> bool:
        """Return whether ``0 <= p < radix`` holds at every point."""
        least = self._extreme(p, greatest=False)
        if least is None or not self._is_natural(least):
            return False
        most = self._extreme(p, greatest=True)
        return most is not None and self._is_natural(add(add(radix, most, -1), ONE, -1))

    def _extreme(self, p: Polynomial, greatest: bool) -> Polynomial | None:
        """Return a bound of ``p`` over the space that holds no axis, or None if none is known."""
        while True:
            moving = unknowns(p) & self.on_axes
            if not moving:
                return p
            # Quotients have higher numbers than their operands.
            for number in sorted(moving, reverse=True):
                self._step()
                changed = self._at_extreme(p, number, greatest)
                if changed is not None:
                    p = changed
                    break
            else:
                return None

    def _at_extreme(self, p: Polynomial, number: int, greatest: bool) -> Polynomial | None:
        """Return ``p`` with one unknown set to the end of its range that makes ``p`` greatest or least, or None."""
        factor = coefficient_of(p, number)
        if factor is None or unknowns(factor) & self.on_axes:
            return None
        rest = add(p, multiply(factor, unknown(number)), -1)
        if number in self.quotient_of:
            a, q = self.quotient_of[number]
            times, left = divide(factor, q)
            if not left:
                # p = rest' + t * (a % q), if it holds -t * q * (a // q) and t * a
                times = multiply(times, constant(-1))
                scaled = multiply(times, a)
                if all(m in rest for m in scaled):
                    upper = self._upper(times, greatest)
                    if upper is None:
                        return None
                    digit = add(q, ONE, -1) if upper else {}
                    return add(add(rest, scaled, -1), multiply(times, digit))
        upper = self._upper(factor, greatest)
        if upper is None:
            return None
        if number in self.quotient_of:
            a, q = self.quotient_of[number]
            end = self._extreme(a, upper)
            return None if end is None else add(rest, multiply(factor, self._quotient(end, q)))
        if number not in self.extent_of:
            return None
        return add(rest, multiply(factor, add(self.extent_of[number], ONE, -1))) if upper else rest

    def _upper(self, factor: Polynomial, greatest: bool) -> bool | None:
        """Return whether the unknown's upper end makes its product with ``factor`` greatest (or least). None if
        unknown.
        """
        if self._is_natural(factor):
            return greatest
        if self._is_natural(multiply(factor, constant(-1))):
            return not greatest
        return None

    # -- signs ----------------------------------------------------------------------------------------------------
    def _is_positive(self, p: Polynomial) -> bool:
        return not unknowns(p) & self.on_axes and self._is_natural(add(p, ONE, -1), p)

    def _is_natural(self, p: Polynomial, above: Polynomial | None = None) -> bool:
        """Return whether ``p``, which depends on no axis, is provably never negative.

        ``above`` is ``p + 1``, given if that may be a product.
        """
        number = as_constant(p)
        if number is not None:
            return number >= 0
        if self._counts(substitute(p, self.slack_form)) or self._is_product(p if above is None else above):
            return True
        # a - q * (a // q) is a digit
        for u in sorted(unknowns(p) & set(self.quotient_of), reverse=True):
            a, q = self.quotient_of[u]
            factor = coefficient_of(p, u)
            times, left = divide(factor, q) if factor is not None else ({}, ONE)
            if factor is None or left:
                continue
            self._step()
            rest = add(add(p, multiply(factor, unknown(u)), -1), multiply(times, a))
            if len(rest) >= len(p):
                continue
            # p = rest - times * (a % q)
            if not self._is_natural(multiply(times, constant(-1))):
                if not self._is_natural(times):
                    continue
                rest = add(rest, multiply(times, add(q, ONE, -1)), -1)
            if self._is_natural(rest):
                return True
        return False

    def _counts(self, p: Polynomial) -> bool:
        """Return whether a polynomial holds only slacks, with coefficients that are not negative."""
        return min(p.values(), default=0) >= 0 and unknowns(p) <= self.slacks

    def _is_product(self, p: Polynomial) -> bool:
        """Return whether ``p`` is a product of positive factors."""
        for factor in self.factors:
            times, left = divide(p, factor)
            if not left and times:
                more = add(substitute(times, self.slack_form), ONE, -1)
                if self._counts(more) or self._is_product(times):
                    return True
        return False

    # -- assumptions ----------------------------------------------------------------------------------------------
    def _assume(self, positive: Sequence[Polynomial]) -> None:
        """Assume that all of these are at least 1."""
        left = [p for p in positive if as_constant(p) is None]
        self.factors = list({key(p): p for p in left if len(p) > 1 or len(next(iter(p))) > 1}.values())
        while left:
            after = [p for p in left if not self._learn(p)]
            if len(after) == len(left):
                return
            left = after

    def _learn(self, p: Polynomial) -> bool:
        """Use the fact that ``p`` is at least 1. Return False if nothing follows from it yet."""
        _, powers = content(p)
        inner = {without(m, powers) or (): c for m, c in p.items()}
        open_powers = [u for u in powers if not self._is_positive(unknown(u))]
        if not open_powers:
            return self._at_least_one(inner)
        if len(open_powers) == 1 and self._is_positive(inner):
            return self._at_least_one(unknown(open_powers[0]))
        return False

    def _at_least_one(self, p: Polynomial) -> bool:
        """Solve ``p >= 1`` for an unknown that occurs once, in a monomial of its own."""
        p = substitute(p, self.slack_form)
        if self._counts(add(p, ONE, -1)):
            return True
        for monomial, coefficient in sorted(p.items()):
            if len(monomial) != 1 or coefficient < 1 or sum(monomial[0] in m for m in p) > 1:
                continue
            least = add(ONE, {m: c for m, c in p.items() if m != monomial}, -1)
            number = as_constant(least)
            if number is not None:
                least = constant(-(-number // coefficient))
            elif coefficient != 1:
                continue
            if monomial[0] in self.slacks and not self._counts(least):
                continue  # this would lose the fact that it is not negative
            self._define(monomial[0], add(least, unknown(self._slack())))
            return True
        return False

    def _slack(self) -> int:
        number = self._new()
        self.slacks.add(number)
        return number

    def _define(self, number: int, form: Polynomial) -> None:
        form = substitute(form, self.slack_form)
        self.slack_form = {n: substitute(p, {number: form}) for n, p in self.slack_form.items()}
        self.slack_form[number] = form


def _is_divided(extent: Extent) -> bool:
    """Return whether an extent holds a quotient."""
    parts = () if isinstance(extent, int) else compat.parts(extent)
    return any(compat.kind(e) in ("FloorDiv", "FloorMod") for e in parts)


def _widens(source: str, target: str) -> bool:
    return source == target or (source, target) == ("int32", "int64")
