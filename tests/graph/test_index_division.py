# SPDX-License-Identifier: Apache-2.0
"""Divisions of indices by symbols are carried out where their result is known, and only there."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tvm import tirx

from tvm_stitch import compat
from tvm_stitch.graph.index_division import Divisions, changes_with

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")
OUTER, INNER = tirx.Var("outer", "int64"), tirx.Var("inner", "int64")
HALF = tirx.floordiv(N - 1, tirx.const(2, "int64")) + 1
EIGHT = tirx.const(8, "int64")
DIV, MOD = tirx.floordiv, tirx.floormod


def value(e: Any, **sizes: int) -> int:
    """Return an expression at given variables."""
    known = {v: tirx.const(sizes[v.name], "int64") for v in compat.free_vars(e)}
    return int(compat.Analyzer().simplify(compat.substitute(e, known)).value)


CASES = {
    "a row": (DIV(OUTER * N + INNER, N), OUTER, N),
    "a column": (MOD(OUTER * N + INNER, N), INNER, N),
    "of a derived extent": (DIV(OUTER * HALF + INNER, HALF), OUTER, HALF),
    "one of several rows": (MOD(DIV(OUTER * N + INNER, N), tirx.const(16, "int64")), None, N),
    "a flipped row": (MOD(OUTER * N + (N - 1 - INNER), N), None, N),
    "of rows of whole groups": (MOD(OUTER * (N * 8 + 8) + INNER, EIGHT), MOD(INNER, EIGHT), N * 8 + 8),
    "a product": (DIV(OUTER * N * M + INNER * M, N * M), OUTER, N),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_known_is_carried_out(name: str) -> None:
    e, wanted, extent = CASES[name]
    found = Divisions([(OUTER, M), (INNER, extent)]).divided(e)
    if wanted is not None:
        assert compat.structural_equal(found, wanted)
    assert not compat.structural_equal(found, e)
    for n, m in itertools.product((1, 2, 5, 8), (1, 3)):
        size = value(extent, n=n)
        for outer, inner in itertools.product(range(m), range(size)):
            at = {"n": n, "m": m, "outer": outer, "inner": inner}
            assert value(found, **at) == value(e, **at)


def test_what_varies_is_left() -> None:
    """The next row begins behind the segment's end."""
    e = DIV(OUTER * N + INNER + 1, N)
    assert compat.structural_equal(Divisions([(OUTER, M), (INNER, N)]).divided(e), e)


def test_static_divisions_are_not_looked_at() -> None:
    e = DIV(OUTER * 8 + INNER, tirx.const(8, "int64"))
    assert Divisions([(OUTER, M), (INNER, 8)]).divided(e) is e


def test_other_rests_are_left() -> None:
    """Such rests have rows that are not whole groups, a product that is no multiple, or modulo what is not positive."""
    for e in (
        MOD(OUTER * (N * 8 + 4) + INNER, EIGHT),
        MOD(OUTER * N + INNER, EIGHT),
        MOD(OUTER * (N * 8) + INNER, tirx.const(-8, "int64")),
    ):
        found = Divisions([(OUTER, M), (INNER, N)]).divided(e)
        for n, m, outer, inner in itertools.product((1, 2, 5), (3,), (0, 2), (0, 3)):
            at = {"n": n, "m": m, "outer": outer, "inner": inner}
            assert value(found, **at) == value(e, **at)
    plain = MOD(OUTER * N + INNER, EIGHT)
    assert Divisions([(OUTER, M), (INNER, N)]).divided(plain) is plain


def test_a_step_along_a_row() -> None:
    axes = [(OUTER, M), (INNER, N - 1)]
    flat = DIV(OUTER * N + INNER, N) * N * 3 + MOD(OUTER * N + INNER, N) * 2
    after = compat.substitute(flat, {INNER: INNER + 1})
    assert Divisions(axes).constant_step(after, flat) == 2
    assert Divisions([(OUTER, M), (INNER, N)]).constant_step(after, flat) is None


def test_a_question_leaves_the_next_its_steps() -> None:
    """A proof has a limited number of steps, each question's own."""
    divisions = Divisions([(OUTER, M), (INNER, N)])
    for number in range(400):
        e = DIV(OUTER * N + INNER + number * N, N)
        assert divisions.constant_step(e, OUTER) == number


def test_an_index_changes_with_the_axes_that_stay_in_it() -> None:
    """Divided by a segment's symbolic extent, an index is the same in the whole segment."""
    n, block, inside = (tirx.Var(name, "int64") for name in ("n", "block", "inside"))
    axes: list[Any] = [(block, 8), (inside, n)]
    flat = block * n + inside
    shared, own = tirx.floordiv(flat, n), tirx.floormod(flat, n)
    assert changes_with(block, [shared], axes) and not changes_with(inside, [shared], axes)
    assert changes_with(inside, [own], axes) and changes_with(inside, [shared, own], axes)
