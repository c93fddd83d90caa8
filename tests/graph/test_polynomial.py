# SPDX-License-Identifier: Apache-2.0
"""Polynomial arithmetic, checked by evaluation at random points."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_stitch.graph.polynomial import (
    MOST_TERMS,
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

monomials = st.lists(st.integers(1, 4), max_size=3).map(lambda us: tuple(sorted(us)))
polynomials = st.dictionaries(monomials, st.integers(-20, 20).filter(bool), max_size=5)
points = st.fixed_dictionaries({u: st.integers(-50, 50) for u in range(1, 5)})


def value(p: Polynomial, at: dict[int, int]) -> int:
    return sum(c * prod(at[u] for u in m) for m, c in p.items())


@given(polynomials, polynomials, points)
@settings(deadline=None)
def test_sums_and_products(a: Polynomial, b: Polynomial, at: dict[int, int]) -> None:
    assert value(add(a, b, -3), at) == value(a, at) - 3 * value(b, at)
    assert value(multiply(a, b), at) == value(a, at) * value(b, at)
    assert not add(a, a, -1) and all(add(a, b).values()) and all(multiply(a, b).values())
    assert key(add(a, b)) == key(add(b, a))


@given(polynomials, polynomials.filter(bool), points)
@settings(deadline=None)
def test_division_leaves_a_rest(p: Polynomial, by: Polynomial, at: dict[int, int]) -> None:
    whole, rest = divide(p, by)
    assert value(by, at) * value(whole, at) + value(rest, at) == value(p, at)


@given(polynomials, polynomials.filter(bool))
@settings(deadline=None)
def test_a_product_is_divided_exactly(a: Polynomial, by: Polynomial) -> None:
    assert divide(multiply(a, by), by) == (a, {})


@given(polynomials, polynomials, points)
@settings(deadline=None)
def test_substitution(p: Polynomial, form: Polynomial, at: dict[int, int]) -> None:
    assert value(substitute(p, {2: form}), at) == value(p, {**at, 2: value(form, at)})


def test_parts() -> None:
    p = {(1, 2): 6, (1, 1, 2): -4}
    assert content(p) == (2, (1, 2)) and content({}) == (1, ())
    assert unknowns(p) == {1, 2}
    assert coefficient_of(p, 2) == {(1,): 6, (1, 1): -4} and coefficient_of(p, 1) is None
    assert common((1, 1, 2), (1, 2, 3)) == (1, 2)
    assert without((1, 1, 2), (1, 2)) == (1,) and without((1, 2), (1, 1)) is None
    assert as_constant(constant(3)) == 3 and as_constant({}) == 0 and as_constant(unknown(1)) is None


def test_constants_are_divided_downwards() -> None:
    assert divide(constant(-9), constant(16)) == (constant(-1), constant(7))


def test_large_products_are_refused() -> None:
    many = {(u,): 1 for u in range(MOST_TERMS)}
    with pytest.raises(TooLarge):
        multiply(many, add(unknown(1), unknown(2)))
