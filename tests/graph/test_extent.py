# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on extents, static and symbolic."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.helpers import symbol
from tvm_stitch import compat
from tvm_stitch.graph.extent import as_expr, as_extent, flatten, is_static, product, quotient, same, unflatten

SHAPES = st.lists(st.integers(1, 6), max_size=4)


@given(SHAPES)
@settings(max_examples=60, deadline=None)
def test_unflatten_is_the_inverse_of_flatten(shape: list[int]) -> None:
    row = symbol("row")
    point = unflatten(row, shape)
    for flat, index in enumerate(itertools.product(*map(range, shape))):
        value = {row: compat.const(flat, "int64")}
        analyzer = compat.Analyzer()
        assert [int(analyzer.simplify(compat.substitute(p, value)).value) for p in point] == list(index)
        indices = [compat.const(i, "int64") for i in index]
        assert int(analyzer.simplify(flatten(indices, shape)).value) == flat


def test_constants_become_ints() -> None:
    assert as_extent(compat.const(7, "int64")) == 7 and isinstance(as_extent(compat.const(7, "int64")), int)
    n = symbol()
    assert as_extent(n) is n and as_expr(n) is n
    assert compat.dtype_of(as_expr(3)) == "int64"


def test_product() -> None:
    n, m = symbol("n"), symbol("m")
    assert product([]) == 1 and product([2, 3]) == 6
    assert product([n]) is n and product([1, n]) is n
    assert product([n, 0]) == 0
    assert same(product([2, n, 3, m]), m * n * 6)
    assert not is_static([2, n]) and is_static([2, 3])


def test_same() -> None:
    n, m = symbol("n"), symbol("m")
    assert same(3, 3) and not same(3, 4) and not same(n, m) and not same(n, 3)
    assert same(n * 2 + n, n * 3)


@given(st.integers(0, 50), st.integers(0, 50))
@settings(max_examples=100, deadline=None)
def test_static_quotients(total: int, part: int) -> None:
    expected = total // part if part and math.gcd(total, part) == part else None
    assert quotient(total, part) == expected


@pytest.mark.parametrize("factor", [1, 4, 24])
def test_symbolic_quotients(factor: int) -> None:
    n = symbol()
    assert quotient(product([n, factor]), n) == factor
    assert same(quotient(product([n, factor]), factor), n)


def test_no_quotient_that_is_not_exact() -> None:
    n, m = symbol("n"), symbol("m")
    assert quotient(n, 2) is None and quotient(n, m) is None and quotient(n * 4 + 2, 4) is None
    assert same(quotient(n * m * 8, n * 2), m * 4)
