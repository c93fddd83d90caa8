# SPDX-License-Identifier: Apache-2.0
"""Uncoalesced accesses count by the sectors that they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvm import relax
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import build, graph, symbol
from tvm_stitch.plan.gpu.uncoalesced import uncoalesced_bytes
from tvm_stitch.plan.iteration.alignment import align
from tvm_stitch.plan.iteration.domain import Domain


def scattered(body: Callable[..., Any], *shapes: Any, dtype: str = "float32", rows: Any = None) -> int:
    op_graph = graph(build(body, *((shape, dtype) for shape in shapes)))
    return uncoalesced_bytes(align(op_graph, CHOICES, Domain(rows) if rows else None))


def turned_sum(emit: Any, x: Any, y: Any) -> Any:
    return R.add(emit(R.permute_dims(x, [1, 0])), y)


SIZE = 1024 * 1024 * 4


def test_a_transposed_input_takes_a_sector_for_each_element() -> None:
    assert scattered(turned_sum, (1024, 1024), (1024, 1024)) == 7 * SIZE


def test_elements_of_half_as_many_bytes_take_twice_as_many() -> None:
    assert scattered(turned_sum, (1024, 1024), (1024, 1024), dtype="float16") == 15 * SIZE // 2


def test_a_transposed_result() -> None:
    """The rows are those of a reduction, and the result lies across them."""

    def body(emit: Any, x: Any) -> Any:
        centred = emit(R.subtract(x, emit(R.mean(x, -1, True))))
        return R.permute_dims(centred, [1, 0])

    assert scattered(body, (1024, 1024)) == 7 * SIZE


@pytest.mark.parametrize(
    ("body", "shapes"),
    [
        (turned_sum, ((64, 64), (64, 64))),  # stays in the caches
        (lambda emit, x: R.nn.relu(x), ((1024, 1024),)),
        (lambda emit, x: R.permute_dims(x, [1, 0, 2]), ((64, 64, 256),)),  # rows stay whole
        (lambda emit, x: R.strided_slice(x, [1], [0], [1024], [2]), ((1024, 1024),)),  # half of each sector
        (lambda emit, x: R.add(x, relax.const(1.0, "float32")), ((symbol("n"), 1024),)),
    ],
    ids=["small", "in order", "whole rows", "strided", "symbolic"],
)
def test_nothing_else_counts(body: Callable[..., Any], shapes: Any) -> None:
    assert scattered(body, *shapes) == 0


def test_rows_shorter_than_a_warp_lie_together() -> None:
    """Neighbouring threads have neighbouring rows."""
    assert scattered(lambda emit, x: R.permute_dims(x, [1, 0]), (8, 65536)) < 7 * 8 * 65536 * 4
