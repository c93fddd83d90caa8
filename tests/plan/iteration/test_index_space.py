# SPDX-License-Identifier: Apache-2.0
"""Graphs aligned over one memory of indices get the points that each gets over its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tvm.relax import op as R

from stitch_testing.random.graphs import random_graph
from tests.choices import CHOICES
from tests.graph.helpers import build, graph, graphs, symbol
from tvm_stitch.graph.ir import Access, StitchGraph
from tvm_stitch.plan.iteration.alignment import Misaligned, align
from tvm_stitch.plan.iteration.domain import Domain
from tvm_stitch.plan.iteration.index_space import IndexSpaces

F32 = "float32"


def told(graph: StitchGraph, spaces: IndexSpaces | None) -> list[str]:
    """Return all points of a graph, as text: the variables of two domains have the same names."""
    try:
        aligned = align(graph, CHOICES, spaces=spaces)
    except Misaligned as err:
        return [str(err)]
    points = [(op.name, at, reads) for (op, at), reads in aligned.reads.items()]
    return [
        f"{name} {at} {at.columns}: {[(str(p), p and str(p.columns)) for p in r]}" for name, at, r in points
    ]


def test_graphs_align_as_over_memories_of_their_own() -> None:
    spaces = IndexSpaces()
    several = [found for seed in range(30) for found in graphs(random_graph(seed).mod)]
    for found in [*several, *reversed(several)]:
        assert told(found, spaces) == told(found, None)


@pytest.mark.parametrize("symbolic", [False, True])
def test_what_is_moved_is_told_apart_by_all_that_decides(symbolic: bool) -> None:
    rows = symbol("n") if symbolic else 6
    shifted = lambda emit, x: R.strided_slice(x, [1], [2], [22])  # noqa: E731
    (op,) = graph(build(shifted, ((rows, 24), F32))).operators
    (access,) = op.accesses
    space = IndexSpaces().of(rows, False)

    def moved(op: object, access: Access, columns: int, rows_of: Domain) -> list[str]:
        point = rows_of.move(op, rows_of.full(columns), access)  # type: ignore[arg-type]
        return [point.at.value, str(point.columns), *map(str, point.indices)]

    wider = replace(access, tensor=replace(access.tensor, shape=(rows, 48)))
    back = replace(access, indices=(access.indices[0], access.indices[1] - 1))
    plain = replace(
        access, indices=tuple(axis.var for axis in op.axes)
    )  # of as many elements as the domain, or more
    narrow = replace(plain, tensor=replace(access.tensor, shape=(rows, 20)))
    for case in (access, wider, back, plain, narrow, access):
        for columns in (20, 40, 20):
            over = Domain(rows, given=space)
            assert moved(op, case, columns, over) == moved(op, case, columns, Domain(rows))


def test_spaces_differ_where_rows_do() -> None:
    spaces = IndexSpaces()
    n, other = symbol("n"), symbol("n")
    kinds = [(6, False), (8, False), (1, False), (1, True), (n, False), (other, False), (n * 2, False)]
    assert len({id(spaces.of(rows, flat)) for rows, flat in kinds}) == len(kinds)
    assert all(spaces.of(rows, flat) is spaces.of(rows, flat) for rows, flat in kinds)
    assert spaces.of(n * 2, False) is spaces.of(n * 2, False)
