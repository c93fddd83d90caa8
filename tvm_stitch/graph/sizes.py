# SPDX-License-Identifier: Apache-2.0
"""Sizes: ints for static shapes, polynomials over names for symbolic shapes. They become text only for printing.

An operation other than sum and product, as ``n // 2``, is a name too. It is printed in brackets within a product.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from .polynomial import Polynomial, TooLarge, add, as_constant, constant, multiply, substitute, unknown


class SymbolicSize:
    """A polynomial over names, with the arithmetic of numbers. A constant size is an int instead.

    Unknown ``i`` of ``terms`` is ``names[i]``. Names are in the order of their first use, which is the order of
    printing. Equality ignores that order.
    """

    __slots__ = ("names", "terms")

    def __init__(self, names: tuple[str, ...], terms: Polynomial):
        self.names = names
        self.terms = terms

    def __add__(self, other: Size) -> Size:
        names, a, b = _over_same_names(self, other)
        return _size(names, add(a, b))

    def __radd__(self, other: int) -> Size:
        return _size(
            self.names, add(constant(other), self.terms)
        )  # terms keep their order, because printing shows it

    def __mul__(self, other: Size) -> Size:
        names, a, b = _over_same_names(self, other)
        try:
            return _size(names, multiply(a, b))
        except TooLarge:
            return named(str(self)) * (other if isinstance(other, int) else named(str(other)))

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return self + -other

    def __rsub__(self, other: int) -> Size:
        return -self + other

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymbolicSize) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> frozenset[tuple[tuple[str, ...], int]]:
        return frozenset((tuple(sorted(self.names[u] for u in m)), c) for m, c in self.terms.items())

    def __str__(self) -> str:
        text = ""
        constants_last = sorted(self.terms.items(), key=lambda term: not term[0])
        for monomial, count in constants_last:
            factors = [self.names[u] for u in monomial]
            number = [str(abs(count))] if abs(count) != 1 or not factors else []
            alone = len(self.terms) == len(factors) == count == 1
            term = " * ".join([*(factors if alone else map(_bracketed, factors)), *number])
            text += ("-" if count < 0 else "") + term if not text else f" {'-' if count < 0 else '+'} {term}"
        return text

    __repr__ = __str__


Size: TypeAlias = int | SymbolicSize


def named(name: str) -> SymbolicSize:
    """Return the size named by a symbol, or by an operation other than a sum or a product."""
    return SymbolicSize((name,), unknown(0))


def static_size(size: Size) -> int:
    """Return a size that the caller knows to be static."""
    assert isinstance(size, int), f"{size} is symbolic"
    return size


def with_sizes_as_text(data: Any) -> Any:
    """Return JSON-like data with the symbolic sizes in its dicts, lists and tuples as text."""
    if isinstance(data, SymbolicSize):
        return str(data)
    if isinstance(data, dict):
        return {key: with_sizes_as_text(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(with_sizes_as_text(value) for value in data)
    return data


def _size(names: tuple[str, ...], terms: Polynomial) -> Size:
    number = as_constant(terms)
    return SymbolicSize(names, terms) if number is None else number


def _over_same_names(a: SymbolicSize, b: Size) -> tuple[tuple[str, ...], Polynomial, Polynomial]:
    """Return the names of two sizes, and both sizes' polynomials over these."""
    if isinstance(b, int):
        return a.names, a.terms, constant(b)
    position = {name: i for i, name in enumerate(dict.fromkeys([*a.names, *b.names]))}
    return (
        tuple(position),
        a.terms,
        substitute(b.terms, {i: unknown(position[n]) for i, n in enumerate(b.names)}),
    )


def _bracketed(factor: str) -> str:
    """Return a factor, in brackets if it holds a space outside of brackets."""
    depth = 0
    for letter in factor:
        depth += (letter in "([") - (letter in ")]")
        if letter == " " and not depth:
            return f"({factor})"
    return factor
