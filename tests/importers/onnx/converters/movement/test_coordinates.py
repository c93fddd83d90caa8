# SPDX-License-Identifier: Apache-2.0
"""Slices at coordinates are ONNX Runtime's, negative coordinates and those outside of the data too."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.importers.onnx.runs import compare, floats, model
from tvm_stitch.importers.onnx.honoured.check import UnsupportedModel
from tvm_stitch.importers.onnx.load import from_onnx

COORDINATES = {
    0: [[-1, -1], [0, 2], [1, -3]],
    1: [[[-1], [0]], [[1], [-3]]],
    2: [[[-1], [0], [2]], [[1], [-4], [0]]],
}
"""Coordinates in data of 2 x 3 x 4, by the number of dimensions of batches."""


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("batch", COORDINATES)
def test_gather_nd(batch: int, constant: bool) -> None:
    given = {"i": np.array(COORDINATES[batch], "int64")}
    node = helper.make_node("GatherND", ["x", "i"], ["y"], batch_dims=batch)
    compare(node, {"x": floats(2, 3, 4), **({} if constant else given)}, given if constant else {})


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
def test_scatter_nd(reduction: str, constant: bool) -> None:
    given = {"i": np.array([[-1, -1], [0, 2]], "int64")}
    node = helper.make_node("ScatterND", list("xiu"), ["y"], reduction=reduction)
    inputs = {"x": floats(2, 3, 4), **({} if constant else given), "u": floats(2, 4)}
    compare(node, inputs, given if constant else {})


@pytest.mark.parametrize("index", [[[0, 3]], [[0, -4]], [[2, 0]]])
@pytest.mark.parametrize("kind", ["GatherND", "ScatterND"])
def test_coordinates_outside_are_refused(kind: str, index: list[list[int]]) -> None:
    updates = {"u": floats(1, 4)} if kind == "ScatterND" else {}
    node = helper.make_node(kind, ["x", "i", *updates], ["y"])
    proto = model(node, {"x": floats(2, 3, 4), **updates}, {"i": np.array(index, "int64")})
    with pytest.raises(UnsupportedModel, match=r"outside of the [23] elements of axis [01]"):
        from_onnx(proto)
