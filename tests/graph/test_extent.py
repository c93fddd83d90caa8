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
from tvm_stitch.compat import tir
from tvm_stitch.graph.extent import (
    as_expr,
    as_extent,
    extent_key,
    flatten,
    is_multiple,
    is_static,
    product,
    quotient,
    same,
    same_shape,
    text_of,
    total,
    unflatten,
)

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


def test_totals() -> None:
    n = symbol()
    assert total([]) == 0 and total([2, 3]) == 5
    assert same(total([n, 2, n * 2, 3]), n * 3 + 5)


def test_extents_are_read_as_sums_of_products() -> None:
    n, m = symbol("n"), symbol("m")
    assert text_of(8) == "8" and text_of(n) == "n"
    assert text_of(n * (m * 2) * 8) == "n * m * 16" == text_of(n * m * 8 + n * m * 8)
    assert text_of((n + 1) * 4 - n * 4 + m) == "m + 4"
    assert text_of(tir.min(n, as_expr(512)) * 4) == "min(n, 512) * 4"
    assert text_of(tir.floordiv(n + 3, as_expr(4)) * m) == "((n + 3) // 4) * m"


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


def test_multiples() -> None:
    n = symbol()
    assert is_multiple(24, 8) and is_multiple(0, 8) and not is_multiple(20, 8)
    assert is_multiple(n * 8, 8) and is_multiple((n + 1) * 16, 8) and is_multiple(n, 1)
    assert not is_multiple(n, 8) and not is_multiple(n * 8 + 4, 8) and not is_multiple(n * 4, 8)


def test_no_quotient_that_is_not_exact() -> None:
    n, m = symbol("n"), symbol("m")
    assert quotient(n, 2) is None and quotient(n, m) is None and quotient(n * 4 + 2, 4) is None
    assert same(quotient(n * m * 8, n * 2), m * 4)


def test_extents_of_one_name_and_two_symbols_differ() -> None:
    n, other = symbol("n"), symbol("n")
    assert extent_key(n * 2) == extent_key(n * 2) and extent_key(n) != extent_key(other)
    assert extent_key(7) == 7 and extent_key(n // 2) != extent_key(n // 3)
    assert same_shape((n, 4), (n, 4)) and not same_shape((n, 4), (other, 4)) and not same_shape((n,), (n, 1))


def test_expressions_are_known_by_their_structure() -> None:
    i = tir.Var("i", "int64")
    a, b = (tir.decl_buffer((8,), "float32", name="x") for _ in range(2))
    forms = [
        i, i + 1, i - 1, tir.Cast("int32", i), compat.const(1, "int64"), compat.const(1, "int32"), compat.load(a, [i]),
        compat.load(b, [i]), tir.exp(compat.load(a, [i])), tir.Select(i < 1, i, i + 1), tir.Var("i", "int64"),
        compat.const(0.0, "float32"), compat.const(-0.0, "float32"), compat.const(1e-30, "float32"),
        compat.const(2e-30, "float32"), compat.const(1e-30, "float64"),
    ]  # fmt: skip
    assert len({compat.expression_key(e) for e in forms}) == len(forms)
    assert compat.expression_key(i + 1) == compat.expression_key(i + 1)
