# SPDX-License-Identifier: Apache-2.0
"""Sums with conditions in their terms are found in expressions, and their terms are grouped by registers."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.relax import op as R

from tests.graph.helpers import build, graph
from tvm_stitch.graph.ir import Operator
from tvm_stitch.plan.iteration.domain import At, Point
from tvm_stitch.plan.iteration.window_sums import WindowSum, grouped, window_sum


def neighbours() -> Operator:
    """Return the mean of three neighbours in each row of an image, those behind the border being zeros."""

    def mean(x: te.Tensor) -> te.Tensor:
        def of_row(i: Any, j: Any) -> Any:
            zero = tirx.const(0, "float32")
            before = tirx.if_then_else(j >= 1, x[i, j - 1], zero)
            behind = tirx.if_then_else(j < 8, x[i, j + 1], zero)
            return (before + x[i, j] + behind) / tirx.const(3, "float32") + x[i, 0]

        return te.compute((4, 9), of_row, "mean")

    def body(emit: Any, x: Any) -> Any:
        return R.nn.relu(emit.__self__.emit_te(mean, x))

    operators = graph(build(body, ((4, 9), "float32"))).operators
    return next(op for op in operators if len(op.accesses) > 1)


def test_the_sum_of_neighbours_is_below_a_division() -> None:
    op = neighbours()
    found = window_sum((op, Point(At.INDEX)), 2)
    assert isinstance(found, WindowSum)
    assert len(found.terms) == 3 and found.begins == (0, 1, 2, 3)
    assert [found.term_of(i) for i in range(4)] == [0, 1, 2, None]
    assert not found.nodes[-1].same_as(op.value)


def test_few_conditions_make_no_window() -> None:
    assert window_sum((neighbours(), Point(At.INDEX)), 3) is None


def test_groups_have_few_registers_and_load_nothing_twice() -> None:
    a, b, c, d = (object() for _ in range(4))
    needs = [[(a, 8.0)], [(a, 8.0), (b, 8.0)], [], [(c, 8.0)], [(d, 40.0)]]
    assert grouped(needs, 16.0) == [([0, 1, 2], [a, b]), ([3], [c]), ([4], [d])]
    assert grouped(needs, 100.0) == [([0, 1, 2, 3, 4], [a, b, c, d])]
