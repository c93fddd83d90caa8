# SPDX-License-Identifier: Apache-2.0
"""Gathers of whole slices are recognised, and gathers of anything else are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvm import te, tirx

from tvm_stitch.graph.gather import Gather, gather_of
from tvm_stitch.graph.reader import read

SHAPE = (8, 5, 6)
Element = Callable[[Any, Any, Any], Any]


def gather(element: Element, shape: tuple[int, ...], numbers: tuple[int, ...] = (3,)) -> Gather | None:
    weights, chosen = te.placeholder(SHAPE, name="weights"), te.placeholder(numbers, "int64", name="chosen")
    made = te.compute(shape, lambda *i: element(weights, chosen, i), name="taken")
    return gather_of(read(te.create_prim_func([weights, chosen, made]), "taken").operators[0])


def of_slices(weights: Any, chosen: Any, i: Any) -> Any:
    return weights(chosen(i[0]), i[1], i[2])


def test_slices_of_one_axis_of_numbers() -> None:
    found = gather(of_slices, (3, 5, 6))
    assert found is not None
    assert (found.source.name, found.numbers.name) == ("weights", "chosen")


def test_numbers_with_an_axis_for_coordinates() -> None:
    assert gather(lambda w, c, i: w(c(i[0], 0), i[1], i[2]), (3, 5, 6), (3, 1)) is not None


def test_numbers_of_two_axes() -> None:
    assert gather(lambda w, c, i: w(c(i[0], i[1]), i[2], i[3]), (3, 2, 5, 6), (3, 2)) is not None


@pytest.mark.parametrize(
    ("element", "shape", "numbers"),
    [
        (of_slices, (3, 5, 4), (3,)),  # a part of a slice
        (of_slices, (2, 5, 6), (3,)),  # not all numbers
        (lambda w, c, i: w(c(i[0]), i[2], i[1]), (3, 6, 5), (3,)),  # transposed slices
        (lambda w, c, i: w(c(i[0]) + 1, i[1], i[2]), (3, 5, 6), (3,)),  # numbers that are computed
        (lambda w, c, i: w(c(i[0], 1), i[1], i[2]), (3, 5, 6), (3, 2)),  # some of the numbers
        (lambda w, c, i: w(i[0], c(i[1]), i[2]), (8, 3, 6), (3,)),  # another axis
        (lambda w, c, i: w(c(i[1], i[0]), i[2], i[3]), (2, 3, 5, 6), (3, 2)),  # in another order
        (lambda w, c, i: w(c(i[0]), i[1], i[2]) * tirx.const(2.0, "float32"), (3, 5, 6), (3,)),
    ],
)
def test_anything_else(element: Element, shape: tuple[int, ...], numbers: tuple[int, ...]) -> None:
    assert gather(element, shape, numbers) is None
