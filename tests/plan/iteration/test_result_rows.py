# SPDX-License-Identifier: Apache-2.0
"""Outputs behind the sums of a product lie where the sums are: in rows that are not the output's first axes."""

from __future__ import annotations

import pytest
from tvm import te, tirx

from tvm_stitch.cost.choices import Choices
from tvm_stitch.graph import read
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.plan.iteration.alignment import Misaligned, align
from tvm_stitch.plan.iteration.domain import At


def sums(width: int, product: bool) -> StitchGraph:
    """Return two rows of sums over weights, picked into a result of two rows, and negated."""
    x, w = te.placeholder((2, 16), name="x"), te.placeholder((24, 16), name="w")

    def total(m: int, i: int) -> te.Tensor:
        k = te.reduce_axis((0, 16), "k")

        def term(n: tirx.Var) -> tirx.PrimExpr:
            weight = w[n * width + i, k]
            return te.sum(weight * x[m, k] if product else weight, axis=k)

        return te.compute((24 // width,), term, f"sum_{m}_{i}")

    each = [total(m, i) for m in range(2) for i in range(width)]

    def picked(m: tirx.Var, n: tirx.Var) -> tirx.PrimExpr:
        value = each[-1][n // width]
        for i, one in list(enumerate(each))[-2::-1]:
            value = tirx.Select(m * width + n % width == i, one[n // width], value)
        return value

    rows = te.compute((2, 24), picked, "rows")
    return read(te.create_prim_func([x, w, te.compute((2, 24), lambda m, n: -rows[m, n], "negated")]), "sums")


@pytest.mark.parametrize("width", [1, 2, 4])
def test_an_output_behind_sums_has_a_row_for_each_of_their_results(width: int) -> None:
    aligned = align(sums(width, True), Choices())
    assert aligned.domain.rows == 24 // width
    (point,) = [at for op, at in aligned.roots if not op.is_reduce]
    assert point.at is At.INDEX
    assert point.columns == 2 * width


def test_sums_that_are_no_product_do_not_turn_the_rows() -> None:
    with pytest.raises(Misaligned):
        align(sums(2, False), Choices())
