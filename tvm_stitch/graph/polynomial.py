# SPDX-License-Identifier: Apache-2.0
"""Polynomials with integer coefficients over numbered unknowns.

A polynomial maps monomials to non-zero coefficients. A monomial is the sorted tuple of its unknowns, each repeated
as often as its power. Equal polynomials are equal dictionaries.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from itertools import chain
from math import gcd
from typing import TypeAlias

Monomial: TypeAlias = tuple[int, ...]
Polynomial: TypeAlias = dict[Monomial, int]
Key: TypeAlias = tuple[tuple[Monomial, int], ...]

MOST_TERMS = 400
"""Limit of terms of a polynomial. A larger one raises :class:`TooLarge`."""


class TooLarge(ValueError):
    """A polynomial of more than ``MOST_TERMS`` terms."""


def constant(value: int) -> Polynomial:
    """Return the polynomial of degree 0 with the given value."""
    return {(): value} if value else {}


def unknown(number: int) -> Polynomial:
    """Return the polynomial that is a single unknown."""
    return {(number,): 1}


def as_constant(p: Polynomial) -> int | None:
    """Return the value of a polynomial of degree 0, or None for others."""
    if not p:
        return 0
    return p[()] if len(p) == 1 and () in p else None


def key(p: Polynomial) -> Key:
    """Return a hashable key that is equal for equal polynomials only."""
    return tuple(sorted(p.items()))


def add(a: Polynomial, b: Polynomial, factor: int = 1) -> Polynomial:
    """Return ``a + factor * b``."""
    result = dict(a)
    for monomial, coefficient in b.items():
        value = result.get(monomial, 0) + factor * coefficient
        if value:
            result[monomial] = value
        else:
            result.pop(monomial, None)
    return result


def multiply(a: Polynomial, b: Polynomial) -> Polynomial:
    """Return ``a * b``.

    Raises:
        TooLarge: if the product has too many terms.
    """
    if len(a) * len(b) > MOST_TERMS:
        raise TooLarge(f"a product of {len(a)} and {len(b)} terms")
    result: Polynomial = {}
    for m, c in a.items():
        for n, d in b.items():
            monomial = tuple(sorted(m + n)) if m and n else m or n
            value = result.get(monomial, 0) + c * d
            if value:
                result[monomial] = value
            else:
                del result[monomial]
    return result


def substitute(p: Polynomial, values: Mapping[int, Polynomial]) -> Polynomial:
    """Return ``p`` with unknowns replaced by polynomials.

    Raises:
        TooLarge: if the result has too many terms.
    """
    result: Polynomial = {}
    for monomial, coefficient in p.items():
        term = {tuple(u for u in monomial if u not in values): coefficient}
        for u in monomial:
            if u in values:
                term = multiply(term, values[u])
        result = add(result, term)
    return result


def unknowns(p: Polynomial) -> set[int]:
    """Return the unknowns that occur in a polynomial."""
    return set(chain.from_iterable(p))


def without(monomial: Monomial, part: Monomial) -> Monomial | None:
    """Return ``monomial / part``, or None if ``part`` does not divide it."""
    left = list(monomial)
    for u in part:
        if u not in left:
            return None
        left.remove(u)
    return tuple(left)


def divide(p: Polynomial, by: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Return ``a`` and ``r`` with ``p == by * a + r``. No term of ``r`` is a multiple of the leading term of
    ``by``.

    The leading term has the highest degree. ``by`` is not zero.
    """
    lead = max(by, key=_order)
    divisor = by[lead]
    quotient: Polynomial = {}
    rest: Polynomial = {}
    left = dict(p)
    while left:
        monomial = max(left, key=_order)
        coefficient = left.pop(monomial)
        part = without(monomial, lead)
        # Constants round down, so that equal quotients have one form. Other coefficients keep their sign.
        times = coefficient // divisor if not monomial else _truncated(coefficient, divisor)
        if part is None or not times:
            rest[monomial] = coefficient
            continue
        quotient[part] = times
        left = add(add(left, {monomial: coefficient}), multiply({part: times}, by), -1)
        if monomial in left:
            rest[monomial] = left.pop(monomial)
    return quotient, rest


def coefficient_of(p: Polynomial, number: int) -> Polynomial | None:
    """Return the factor of an unknown that occurs with the powers 0 and 1 only, or None for higher powers."""
    factor: Polynomial = {}
    for monomial, c in p.items():
        count = monomial.count(number)
        if count > 1:
            return None
        if count:
            factor[tuple(u for u in monomial if u != number)] = c
    return factor


def content(p: Polynomial) -> tuple[int, Monomial]:
    """Return the greatest integer and the greatest monomial that divide every term (1 and () for 0)."""
    if not p:
        return 1, ()
    return reduce(gcd, p.values(), 0), reduce(common, p)


def common(a: Monomial, b: Monomial) -> Monomial:
    """Return the greatest common divisor of two monomials."""
    left, shared = list(b), []
    for u in a:
        if u in left:
            left.remove(u)
            shared.append(u)
    return tuple(shared)


def _order(monomial: Monomial) -> tuple[int, Monomial]:
    return len(monomial), monomial


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
