# SPDX-License-Identifier: Apache-2.0
"""Terms are one number for equal values only."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.relax import op as R

from tests.graph.helpers import build, graph
from tvm_stitch.compat import const, tir
from tvm_stitch.graph.rewrite.terms import Leaves, Terms


@pytest.fixture(scope="module")
def operator() -> Any:
    return graph(build(lambda emit, x: R.exp(x), ((4, 8), "float32"))).operators[0]


def test_zeros_of_either_sign_and_integers_differ(operator: Any) -> None:
    terms = Terms(operator.axes)
    values = [const(0.0, "float32"), const(-0.0, "float32"), const(0, "int32")]
    assert len({terms._visit(operator, v, terms.var) for v in values}) == 3


def test_symbols_of_one_name_differ(operator: Any) -> None:
    terms = Terms(operator.axes)
    found = [terms._visit(operator, tir.Var("n", "int64"), terms.var) for _ in range(2)]
    assert found[0] != found[1]


def test_a_symbol_with_an_axis_name_is_no_axis(operator: Any) -> None:
    terms = Terms(operator.axes)
    axis = terms._visit(operator, operator.axes[0].var, terms.var)
    assert axis != terms._visit(operator, tir.Var("axis0", "int64"), terms.var)


def test_a_product_of_values_of_different_tensors_is_no_square() -> None:
    """The deviation from a mean may be a square, through casts and element-wise operators, and other products not."""

    def body(emit: Any, x: Any, y: Any) -> Any:
        wide = emit(R.astype(x, "float32"))
        mean = emit(R.mean(wide, 1, keepdims=True))
        deviation = emit(R.subtract(wide, mean))
        return emit(R.sum(emit(R.multiply(deviation, deviation)), 1)), emit(
            R.sum(emit(R.multiply(wide, y)), 1)
        )

    op_graph = graph(build(body, ((4, 8), "float16"), ((4, 8), "float32")))
    leaves = Leaves(op_graph)
    _, squares, products = op_graph.reduces
    assert leaves.may_be_square(squares)
    assert not leaves.may_be_square(products)
    assert {t.name for t in leaves.of(squares, squares.value)} == {
        op_graph.inputs[0].name,
        op_graph.reduces[0].output.name,
    }
