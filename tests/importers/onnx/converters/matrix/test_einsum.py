# SPDX-License-Identifier: Apache-2.0
"""Equations of Einsum compute what ONNX Runtime does, and contractions are matmuls."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.importers.onnx.runs import compare, floats, model
from tvm_stitch.importers.onnx.honoured.check import UnsupportedModel
from tvm_stitch.importers.onnx.load import from_onnx

CASES = {
    "bqc,bchw->bqhw": [(2, 3, 4), (2, 4, 5, 6)],
    "ii->i": [(4, 4)],
    "...ij,jk->...ik": [(2, 3, 4), (4, 5)],
    "ij,jk": [(3, 4), (4, 5)],
    "i,j->ij": [(3,), (4,)],
    "bij,bjk,bkl->bil": [(2, 3, 4), (2, 4, 5), (2, 5, 3)],
    "ij->": [(3, 4)],
    "ij->ji": [(3, 4)],
    "bhqd,bhkd->bhqk": [(2, 2, 3, 4), (2, 2, 5, 4)],
}


@pytest.mark.parametrize("equation", CASES)
def test_equations(equation: str) -> None:
    inputs = {f"x{i}": floats(*shape) for i, shape in enumerate(CASES[equation])}
    compare(helper.make_node("Einsum", list(inputs), ["y"], equation=equation), inputs)


def test_a_contraction_is_one_matmul() -> None:
    inputs = {"a": floats(1, 3, 4), "b": floats(1, 4, 5, 6)}
    proto = model(helper.make_node("Einsum", ["a", "b"], ["y"], equation="bqc,bchw->bqhw"), inputs)
    text = from_onnx(proto).script()
    assert text.count("R.matmul(") == 1 and "call_tir" not in text


def test_an_equation_that_does_not_fit_is_refused() -> None:
    proto = model(
        helper.make_node("Einsum", ["x"], ["y"], equation="ijk->i"), {"x": np.ones((2, 3), "float32")}
    )
    with pytest.raises(UnsupportedModel, match="'ijk->i' does not fit inputs of .2. dimensions"):
        from_onnx(proto)
