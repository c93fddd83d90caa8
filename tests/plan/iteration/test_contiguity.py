# SPDX-License-Identifier: Apache-2.0
"""When columns may move as vectors, against enumeration of addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.helpers import symbol
from tvm_stitch import compat
from tvm_stitch.compat import tir
from tvm_stitch.graph.extent import flatten
from tvm_stitch.plan.iteration.contiguity import repeated, vectorizable
from tvm_stitch.plan.iteration.domain import Domain


def truth(domain: Domain, indices: Sequence[Any], shape: Sequence[int], columns: int, vector: int) -> bool:
    """Yield every aligned group of columns of every row: consecutive elements from an aligned one on."""
    flat = flatten(indices, shape)
    analyzer = compat.Analyzer()
    for row in range(domain.rows):
        for group in range(columns // vector):
            values = []
            for e in range(vector):
                column = compat.const(group * vector + e, "int64")
                at = {domain.row: compat.const(row, "int64"), domain.column: column}
                values.append(int(analyzer.simplify(compat.substitute(flat, at)).value))
            if values[0] % vector or values != list(range(values[0], values[0] + vector)):
                return False
    return True


def check(domain: Domain, indices: Sequence[Any], shape: Sequence[int], columns: int, vector: int) -> bool:
    said = vectorizable(domain, indices, shape, columns, vector)
    if said:
        assert truth(domain, indices, shape, columns, vector)
    return said


def test_rows_in_order() -> None:
    d = Domain(3)
    assert check(d, [d.row, d.column], (3, 16), 16, 4)
    assert not check(d, [d.row, d.column], (3, 18), 18, 4), "row 1 starts at 18"
    assert check(d, [d.row, d.column], (3, 18), 18, 2)
    assert check(d, [d.column], (16,), 16, 4)
    assert check(d, [d.row, d.column], (3, 7), 7, 1)


def test_dimensions_that_no_vector_divides() -> None:
    """Elements in the order of memory are next to each other across rows of six."""
    d = Domain(1, flat=True)
    column = d.column
    assert check(d, [column // 30, column // 6 % 5, column % 6], (8, 5, 6), 240, 8)
    assert not check(d, [column // 30, column % 6, column // 6 % 5], (8, 6, 5), 240, 8)


def test_shifted_and_strided_columns() -> None:
    d = Domain(3)
    assert not check(d, [d.row, d.column + 1], (3, 20), 16, 4)
    assert check(d, [d.row, d.column + 4], (3, 20), 16, 4)
    assert not check(d, [d.row, d.column * 2], (3, 32), 16, 4)
    assert not check(d, [d.column, d.row], (16, 3), 16, 4)
    assert not check(d, [d.row, 15 - d.column], (3, 16), 16, 4)


def test_columns_through_several_dimensions() -> None:
    d = Domain(3)
    c = d.column
    assert check(d, [d.row, tir.floordiv(c, 8), tir.floormod(c, 8)], (3, 4, 8), 32, 4)
    assert not check(d, [tir.floordiv(c, 8), d.row, tir.floormod(c, 6)], (4, 3, 8), 32, 4)
    assert check(d, [tir.floordiv(c, 8), d.row, tir.floormod(c, 8)], (4, 3, 8), 32, 4)
    assert not check(d, [tir.floordiv(c, 2), d.row, tir.floormod(c, 2)], (16, 3, 2), 32, 4)


def test_symbolic_rows() -> None:
    n = symbol()
    d = Domain(n)
    assert vectorizable(d, [d.row, d.column], (n, 16), 16, 4)
    assert not vectorizable(d, [d.row, d.column], (n, 18), 18, 4)


@given(
    st.integers(1, 3), st.sampled_from([1, 2, 4]), st.integers(1, 6), st.integers(0, 8), st.integers(0, 4),
    st.integers(1, 2), st.booleans(),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_what_is_said_to_be_a_vector_is_one(
    rows: int, vector: int, groups: int, shift: int, pad: int, stride: int, swapped: bool
) -> None:
    columns = groups * vector
    d = Domain(rows)
    inner = d.column * stride + shift
    width = columns * stride + shift + pad
    indices, shape = ([inner, d.row], (width, rows)) if swapped else ([d.row, inner], (rows, width))
    said = check(d, indices, shape, columns, vector)
    assert said == truth(d, indices, shape, columns, vector), "affine indices are decided exactly"


@given(
    st.sampled_from([1, 2, 4, 8, 12]),
    st.sampled_from([0, 1, 2, 4]),
    st.sampled_from([16, 24, 64]),
    st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_repeated_columns_read_one_element(width: int, offset: int, columns: int, scale: int) -> None:
    """An index ``(column + offset) // width``: no two columns of a group read different elements."""
    domain = Domain(3)
    index = tir.floordiv(domain.column + compat.const(offset, "int64"), compat.const(width, "int64"))
    shape, indices = (3, 128), (domain.row, index * compat.const(scale, "int64"))
    count = repeated(domain, indices, shape, columns, 8)
    read = [(column + offset) // width * scale for column in range(columns)]
    assert columns % count == 0
    assert all(len(set(read[i : i + count])) == 1 for i in range(0, columns, count))
    if offset == 0 and width in (2, 4, 8) and columns % width == 0 and scale:
        assert count == width


def test_words_of_packed_integers_are_consecutive() -> None:
    domain = Domain(5)
    index = tir.floordiv(domain.column, compat.const(8, "int64"))
    assert vectorizable(domain, (domain.row, index), (5, 16), 128, 32, every=8)
    assert not vectorizable(domain, (domain.row, index), (5, 15), 120, 32, every=8)
