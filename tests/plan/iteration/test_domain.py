# SPDX-License-Identifier: Apache-2.0
"""Points in the domain and where accesses move them, checked by enumeration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvm.relax import op as R

from stitch_testing.random.graphs import random_graph
from tests.choices import CHOICES
from tests.graph.helpers import build, graph, graphs, symbol
from tvm_stitch import compat
from tvm_stitch.codegen.evaluator import input_indices
from tvm_stitch.plan.iteration.alignment import Alignment, align
from tvm_stitch.plan.iteration.domain import ONE, ROW, At, Domain, Point

F32 = "float32"


def test_points_compare_by_place() -> None:
    domain = Domain(6)
    assert domain.full(4) == domain.full(4) and domain.full(4) != domain.full(5)
    assert hash(domain.full(4)) == hash(domain.full(4))
    assert ROW != ONE and Domain(1).row_point == ONE and Domain(6).row_point == ROW
    assert domain.full(4).per_column and not ROW.per_column and Point(At.COLUMN, 4).per_column
    assert not Point(At.INDEX, 0).per_column and Point(At.INDEX, 4).per_column
    assert Domain(symbol()).row_point == ROW


def test_classify_finds_canonical_places() -> None:
    op_graph = graph(build(lambda emit, x: R.exp(x), ((6, 20), F32)))
    tensor, domain = op_graph.inputs[0], Domain(6)
    row, column, zero = domain.row, domain.column, compat.const(0, "int64")
    full = domain.full(20)
    assert domain.classify(tensor, [row, column], full) == full
    assert domain.classify(tensor, [zero, column], full).at is At.INDEX
    assert domain.classify(tensor, [row, column * 2], Point(At.FULL, 10)).at is At.INDEX
    shifted = domain.classify(tensor, [row, column + 1], Point(At.FULL, 19))
    assert shifted.at is At.INDEX and shifted.per_column
    fixed = domain.classify(tensor, [row, compat.const(3, "int64")], full)
    assert fixed.at is At.INDEX and not fixed.per_column


def test_leading_axes_are_a_row_only_if_they_are_all_of_its_axes() -> None:
    (op,) = graph(build(lambda emit, x, y: R.add(x, y), ((2, 3, 4), F32), ((2, 1, 1), F32))).operators
    (access,) = [a for a in op.accesses if a.tensor.size == 2]
    assert Domain(2).move(op, Domain(2).full(12), access) == ROW
    domain = Domain(6)
    moved = domain.move(op, domain.full(4), access)
    assert moved.at is At.INDEX and not moved.per_column
    (index, *_) = moved.indices
    at = compat.substitute(index, {domain.row: compat.const(5, "int64")})
    assert int(compat.Analyzer().simplify(at).value) == 1


def value_of(expr: Any, alignment: Alignment, row: int, column: int) -> int:
    domain = alignment.domain
    values = {domain.row: compat.const(row, "int64"), domain.column: compat.const(column, "int64")}
    return int(compat.Analyzer().simplify(compat.substitute(expr, values)).value)


def check_moves(alignment: Alignment, samples: int = 5) -> None:
    """Substituting an operator's point into an access gives the element that the moved point names."""
    domain = alignment.domain
    for (op, point), reads in alignment.reads.items():
        columns = point.columns if point.per_column else 1
        rows = domain.rows
        places = [(r * 7919 % rows, c * 104729 % columns) for r in range(samples) for c in range(samples)]
        spatial = domain.axis_values(op, point)

        def inside(r: int, c: int, op: Any = op, spatial: Any = spatial) -> bool:
            """Return whether there is such a point. Below a guard an operator's point may lie outside of it."""
            return all(0 <= value_of(spatial[a.var], alignment, r, c) < a.extent for a in op.axes)

        for access, child in zip(op.accesses, reads):
            if child is None or not all(a.var in spatial for a in op.axes):
                continue
            direct = [compat.substitute(i, spatial) for i in access.indices]
            if access.tensor.producer is not None and access.tensor.producer.is_reduce:
                continue  # known once a row, and alignment itself checks its position
            named = input_indices(alignment, access.tensor, child)
            for r, c in places:
                shape = access.tensor.shape
                want = got = 0
                for d, n, e in zip(direct, named, shape):
                    want = want * e + value_of(d, alignment, r, c)
                    got = got * e + value_of(n, alignment, r, c)
                if not access.guarded and inside(r, c):
                    assert want == got, (op, point, access.tensor, child)


BODIES: dict[str, Callable[..., Any]] = {
    "softmax": lambda emit, x: R.divide(emit(R.exp(x)), emit(R.sum(emit(R.exp(x)), -1, True))),
    "outer axes": lambda emit, x: R.divide(x, emit(R.sum(emit(R.exp(x)), [0, 2], True))),
    "reshape": lambda emit, x: R.exp(
        emit(R.reshape(emit(R.subtract(x, emit(R.max(x, -1, True)))), (6, 2, 8)))
    ),
    "transpose": lambda emit, x: R.exp(emit(R.permute_dims(x, [1, 0, 2]))),
    "bias": lambda emit, x: R.add(x, emit(R.max(x, [0, 1], True))),
    "slices": lambda emit, x: R.multiply(
        emit(R.strided_slice(x, [2], [0], [4])), emit(R.strided_slice(x, [2], [4], [8]))
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_moves_name_the_right_elements(name: str) -> None:
    for op_graph in graphs(build(lambda emit, x: emit(BODIES[name](emit, x)), ((3, 4, 8), F32))):
        check_moves(align(op_graph, CHOICES))


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_moves_of_random_graphs_name_the_right_elements(first: int) -> None:
    for seed in range(first, first + 10):
        for op_graph in graphs(random_graph(seed, max_elements=600).mod):
            check_moves(align(op_graph, CHOICES), samples=2)


def test_points_with_symbols_of_one_name_differ() -> None:
    domain = Domain(8)
    n, other = symbol("n"), symbol("n")
    one, two, again = (Point(At.INDEX, 4, (domain.column + s,)) for s in (n, other, n))
    assert str(one) == str(two) and one != two
    assert one == again and hash(one) == hash(again) and len({one, two, again}) == 2
