# SPDX-License-Identifier: Apache-2.0
"""Choices between inputs that hold for whole vectors of columns."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import single
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.plan.iteration.alignment import align
from tvm_stitch.plan.iteration.pieces import Choice, choice_of


def choice(op_graph: StitchGraph, vector: int = 8) -> Choice | None:
    """Return the choice of the only operator, over all columns of a flat domain or of its rows."""
    aligned = align(op_graph, CHOICES)
    (key,) = [key for key in aligned.reads if key[0] is op_graph.operators[-1]]
    return choice_of(aligned, key, key[1].columns, vector)


def concatenation(*shapes: tuple[int, ...], axis: int) -> StitchGraph:
    specs = [(shape, "float16") for shape in shapes]
    return single(lambda emit, *xs: R.concat(list(xs), axis), *specs)


@pytest.mark.parametrize(
    ("widths", "columns"),
    [((16, 8), 8), ((8, 12), 4), ((24, 4), 4), ((6, 10), 2), ((7, 9), None), ((8, 9), None)],
)
def test_pieces_side_by_side(widths: tuple[int, int], columns: int | None) -> None:
    found = choice(concatenation(*((5, 3, width) for width in widths), axis=2))
    assert (None if found is None else found.columns) == columns
    if found is not None:
        assert [p.tensor is not None for p in found.pieces] == [True, True]
        assert [p.condition is None for p in found.pieces] == [False, True]


def test_pieces_of_other_axes_are_chosen_by_position() -> None:
    found = choice(concatenation((3, 5, 8), (3, 7, 8), (3, 1, 8), axis=1))
    assert found is not None and (len(found.pieces), found.columns) == (3, 8)


def test_a_vector_has_16_bytes_at_most() -> None:
    specs: list[Any] = [((4, 16), "float32"), ((4, 8), "float32")]
    found = choice(single(lambda emit, *xs: R.concat(list(xs), 1), *specs))
    assert found is not None and found.columns == 4


def test_a_border_is_a_number() -> None:
    found = choice(single(lambda emit, x: R.nn.pad(x, [0, 0, 1, 1, 0, 0]), ((2, 5, 8), "float16")))
    assert found is not None and found.columns == 8
    assert sorted(p.tensor is None for p in found.pieces) == [False, True]


def test_a_border_inside_a_vector_divides_it() -> None:
    """The input begins at an aligned position, and ends within a vector of eight."""
    found = choice(single(lambda emit, x: R.nn.pad(x, [0, 20]), ((12,), "float16")))
    assert found is not None and found.columns == 4


def test_a_border_beside_channels_is_chosen_element_by_element() -> None:
    op_graph = single(lambda emit, x: R.nn.pad(x, [0, 0, 1, 1]), ((2, 6), "float16"))
    assert choice(op_graph) is None


def test_an_operator_that_computes_is_no_choice() -> None:
    assert choice(single(lambda emit, x: R.nn.relu(x), ((4, 16), "float16"))) is None
