# SPDX-License-Identifier: Apache-2.0
"""An access depends on axes that index maps show. Enumeration checks them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.helpers import symbol
from tvm_stitch import compat
from tvm_stitch.compat import tir
from tvm_stitch.graph.access import branches, gathers, has_load, loads, span_of
from tvm_stitch.graph.extent import flatten
from tvm_stitch.graph.ir import Axis, Span


def axes_of(*extents: object) -> list[Axis]:
    return [Axis(tir.Var(f"v{i}", "int64"), e) for i, e in enumerate(extents)]


def test_the_identity() -> None:
    axes = axes_of(3, 4, 5)
    assert span_of([a.var for a in axes], (3, 4, 5), axes) == (Span.ALL, 3)


def test_a_view_with_other_dimensions_is_the_identity() -> None:
    axes = axes_of(3, 4, 5)
    v = [a.var for a in axes]
    assert span_of([v[0] * 4 + v[1], v[2]], (12, 5), axes) == (Span.ALL, 3)
    flat = v[0] * 20 + v[1] * 5 + v[2]
    assert span_of([tir.floordiv(flat, 10), tir.floormod(flat, 10)], (6, 10), axes) == (Span.ALL, 3)


@pytest.mark.parametrize(
    ("picked", "expected"),
    [
        ([0], (Span.LEADING, 1)),
        ([0, 1], (Span.LEADING, 2)),
        ([2], (Span.TRAILING, 2)),
        ([1, 2], (Span.TRAILING, 1)),
        ([1], (Span.OTHER, 0)),
        ([0, 2], (Span.OTHER, 0)),
        ([1, 0], (Span.OTHER, 0)),
        ([0, 2, 1], (Span.OTHER, 0)),
    ],
)
def test_projections(picked: list[int], expected: tuple[Span, int]) -> None:
    axes = axes_of(3, 4, 5)
    shape = tuple(axes[i].extent for i in picked)
    assert span_of([axes[i].var for i in picked], shape, axes) == expected


def test_unit_dimensions_do_not_matter() -> None:
    axes = axes_of(3, 1, 5)
    zero = compat.const(0, "int64")
    assert span_of([axes[0].var, zero, zero], (3, 1, 1), axes) == (Span.LEADING, 1)
    assert span_of([zero, axes[2].var], (1, 5), axes) == (Span.TRAILING, 2)
    assert span_of([axes[0].var, axes[2].var], (3, 5), axes) == (Span.ALL, 3)


def test_a_single_element() -> None:
    axes = axes_of(3, 4)
    zero = compat.const(0, "int64")
    assert span_of([], (), axes) == (Span.NOTHING, 0)
    assert span_of([zero], (1,), axes) == (Span.NOTHING, 0)
    assert span_of([compat.const(2, "int64")], (7,), axes) == (Span.OTHER, 0)


def test_slices_and_strides_are_other() -> None:
    axes = axes_of(3, 4)
    i, j = (a.var for a in axes)
    assert span_of([i, j + 1], (3, 5), axes)[0] is Span.OTHER
    assert span_of([i, j * 2], (3, 8), axes)[0] is Span.OTHER
    assert span_of([i, j], (3, 5), axes)[0] is Span.OTHER
    assert span_of([i, 3 - j], (3, 4), axes)[0] is Span.OTHER


def test_symbolic_extents() -> None:
    n = symbol()
    axes = axes_of(n, 8)
    i, j = (a.var for a in axes)
    assert span_of([i, j], (n, 8), axes) == (Span.ALL, 2)
    assert span_of([i], (n,), axes) == (Span.LEADING, 1)
    assert span_of([i * 8 + j], (n * 8,), axes) == (Span.ALL, 2)
    assert span_of([j], (8,), axes) == (Span.TRAILING, 1)


def brute_force(
    indices: Sequence[object], shape: Sequence[int], axes: Sequence[Axis]
) -> dict[tuple[int, ...], int]:
    analyzer = compat.Analyzer()
    flat = flatten(indices, shape)
    found = {}
    for point in itertools.product(*(range(a.extent) for a in axes)):
        values = {a.var: compat.const(p, "int64") for a, p in zip(axes, point)}
        found[point] = int(analyzer.simplify(compat.substitute(flat, values)).value)
    return found


@given(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3), st.data())
@settings(max_examples=120, deadline=None)
def test_what_a_span_says_holds(extents: list[int], data: st.DataObject) -> None:
    """Any choice of axes as indices, in any order: a span other than OTHER is right about every point."""
    axes = axes_of(*extents)
    picked = data.draw(st.lists(st.integers(0, len(axes) - 1), unique=True, max_size=3))
    shape = [axes[i].extent for i in picked]
    span, cut = span_of([axes[i].var for i in picked], shape, axes)
    table = brute_force([axes[i].var for i in picked], shape, axes)
    own = {
        Span.ALL: (0, len(axes)),
        Span.LEADING: (0, cut),
        Span.TRAILING: (cut, len(axes)),
        Span.NOTHING: (0, 0),
    }
    if span is Span.OTHER:
        whole = brute_force([a.var for a in axes], extents, axes)
        assert table != whole
        return
    low, high = own[span]
    part = brute_force([a.var for a in axes[low:high]], extents[low:high], axes)
    assert table == part


def test_loads_come_with_their_guards() -> None:
    a, b = (tir.decl_buffer((8,), "float32", name=n) for n in "ab")
    i = tir.Var("i", "int64")
    plain, guarded = compat.load(a, [i]), compat.load(b, [i])
    value = plain + tir.if_then_else(i < 4, guarded, compat.const(0.0, "float32"))
    assert [(compat.load_buffer(e).name, g) for e, g in loads(value)] == [("a", False), ("b", True)]
    assert has_load(value) and not has_load(i + 1)


def test_loads_in_indices_are_loads() -> None:
    data = tir.decl_buffer((8,), "float32", name="data")
    index = tir.decl_buffer((8,), "int64", name="index")
    i = tir.Var("i", "int64")
    gather = compat.load(data, [compat.load(index, [i])])
    assert [compat.load_buffer(e).name for e, _ in loads(gather)] == ["data", "index"]
    assert span_of(list(gather.indices), (8,), [Axis(i, 8)]) == (Span.OTHER, 0)


@pytest.mark.parametrize("gathering", [True, False])
def test_selects_that_gather_guard_their_branches(gathering: bool) -> None:
    """Both branches of a Select may be evaluated, unless one reads at an index that may be out of bounds there."""
    data = tir.decl_buffer((8,), "float32", name="data")
    index = tir.decl_buffer((8,), "int64", name="index")
    i = tir.Var("i", "int64")
    label = compat.load(index, [i])
    value = tir.Select(
        label >= 0, compat.load(data, [label if gathering else i]), compat.const(0.0, "float32")
    )
    found = [(compat.load_buffer(e).name, g) for e, g in loads(value)]
    expected = [("index", False), ("data", gathering)] + [("index", True)] * gathering
    assert found == expected
    chosen = branches(value)
    assert (chosen is not None) == gathering == gathers(value)
    assert not gathers(label)
