# SPDX-License-Identifier: Apache-2.0
"""Polynomials with integer coefficients over numbered unknowns.

A polynomial maps monomials to coefficients that are not zero; a monomial is the sorted tuple of its unknowns, each as
often as its power says. Equal polynomials are equal dictionaries.
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
"""Terms of a polynomial; what needs more is given up."""


class TooLarge(ValueError):
    """A polynomial of more than ``MOST_TERMS`` terms."""


def constant(value: int) -> Polynomial:
    """The polynomial of degree 0."""
    return {(): value} if value else {}


def unknown(number: int) -> Polynomial:
    """The polynomial that is one unknown."""
    return {(number,): 1}


def as_constant(p: Polynomial) -> int | None:
    """The value of a polynomial of degree 0, None for others."""
    if not p:
        return 0
    return p[()] if len(p) == 1 and () in p else None


def key(p: Polynomial) -> Key:
    """What equal polynomials share, and others do not."""
    return tuple(sorted(p.items()))


def add(a: Polynomial, b: Polynomial, factor: int = 1) -> Polynomial:
    """``a + factor * b``."""
    found = dict(a)
    for monomial, coefficient in b.items():
        value = found.get(monomial, 0) + factor * coefficient
        if value:
            found[monomial] = value
        else:
            found.pop(monomial, None)
    return found


def multiply(a: Polynomial, b: Polynomial) -> Polynomial:
    """``a * b``.

    Raises:
        TooLarge: when the product has too many terms.
    """
    if len(a) * len(b) > MOST_TERMS:
        raise TooLarge(f"a product of {len(a)} and {len(b)} terms")
    found: Polynomial = {}
    for m, c in a.items():
        for n, d in b.items():
            monomial = tuple(sorted(m + n)) if m and n else m or n
            value = found.get(monomial, 0) + c * d
            if value:
                found[monomial] = value
            else:
                del found[monomial]
    return found


def substitute(p: Polynomial, values: Mapping[int, Polynomial]) -> Polynomial:
    """``p`` with unknowns replaced.

    Raises:
        TooLarge: when the result has too many terms.
    """
    found: Polynomial = {}
    for monomial, coefficient in p.items():
        term = {tuple(u for u in monomial if u not in values): coefficient}
        for u in monomial:
            if u in values:
                term = multiply(term, values[u])
        found = add(found, term)
    return found


def unknowns(p: Polynomial) -> set[int]:
    """The unknowns that occur."""
    return set(chain.from_iterable(p))


def without(monomial: Monomial, part: Monomial) -> Monomial | None:
    """``monomial / part``, None where ``part`` does not divide it."""
    left = list(monomial)
    for u in part:
        if u not in left:
            return None
        left.remove(u)
    return tuple(left)


def divide(p: Polynomial, by: Polynomial) -> tuple[Polynomial, Polynomial]:
    """``a`` and ``r`` with ``p == by * a + r``, where no term of ``r`` is a multiple of ``by``'s leading one.

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
        # Constants round down, so that of equal quotients one form is found; signs of others are kept.
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
    """The factor of an unknown that occurs with no power but 0 and 1, None if with others."""
    found: Polynomial = {}
    for monomial, c in p.items():
        count = monomial.count(number)
        if count > 1:
            return None
        if count:
            found[tuple(u for u in monomial if u != number)] = c
    return found


def content(p: Polynomial) -> tuple[int, Monomial]:
    """The greatest integer and the greatest monomial that divide every term (1 and () of 0)."""
    if not p:
        return 1, ()
    return reduce(gcd, p.values(), 0), reduce(common, p)


def common(a: Monomial, b: Monomial) -> Monomial:
    """The greatest common divisor of two monomials."""
    left, found = list(b), []
    for u in a:
        if u in left:
            left.remove(u)
            found.append(u)
    return tuple(found)


def _order(monomial: Monomial) -> tuple[int, Monomial]:
    return len(monomial), monomial


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
