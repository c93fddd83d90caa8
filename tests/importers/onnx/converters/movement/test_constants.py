# SPDX-License-Identifier: Apache-2.0
"""Constants of every form, and shapes that are inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.importers.onnx.runs import compare, floats, model
from tvm_stitch.importers.onnx.honoured.check import UnsupportedModel
from tvm_stitch.importers.onnx.load import from_onnx


@pytest.mark.parametrize(
    "value",
    [
        {"value_float": 2.5},
        {"value_floats": [1.0, 2.0, 3.0]},
        {"value": helper.make_tensor("t", 1, [1], [4.0])},
    ],
)
def test_constants(value: dict[str, Any]) -> None:
    nodes = [helper.make_node("Constant", [], ["c"], **value), helper.make_node("Mul", ["x", "c"], ["y"])]
    compare(nodes, {"x": floats(2, 3)})


def test_strings_are_refused_by_name() -> None:
    nodes = [helper.make_node("Constant", [], ["c"], value_string="a"), helper.make_node("Exp", ["x"], ["y"])]
    with pytest.raises(UnsupportedModel, match=r"node 0 \(Constant .*value_string = 'a' is not honoured"):
        from_onnx(model(nodes, {"x": floats(2)}))


def test_shapes_of_symbols_are_computed_at_import() -> None:
    """Flatten two dimensions whose names are no identifiers."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["b"]),
        helper.make_node("Gather", ["s", "one"], ["t"]),
        helper.make_node("Mul", ["b", "t"], ["p"]),
        helper.make_node("Unsqueeze", ["p", "axes"], ["u"]),
        helper.make_node("Concat", ["u", "rest"], ["n"], axis=0),
        helper.make_node("Reshape", ["x", "n"], ["y"]),
    ]
    constants = {"zero": np.int64(0), "one": np.int64(1), "axes": np.array([0]), "rest": np.array([-1])}
    dims = {"x": ["batch-size", "past_len + 1", 8]}
    mod = from_onnx(model(nodes, {"x": floats(2, 3, 8)}, constants, dims=dims))
    batch, length, _ = mod["main"].params[0].ty.shape
    assert batch.name != length.name
    rows, columns = mod["main"].ret_ty.shape
    assert str(rows) == f"{batch.name} * {length.name}" and int(columns) == 8


def test_equal_names_are_one_symbol_and_similar_ones_are_not() -> None:
    dims = {"x": ["a-b"], "y": ["a-b"], "z": ["a_b"]}
    inputs = {name: floats(2) for name in "xyz"}
    node = helper.make_node("Concat", list("xyz"), ["w"], axis=0)
    x, y, z = (param.ty.shape[0] for param in from_onnx(model(node, inputs, dims=dims))["main"].params)
    assert x.same_as(y) and not x.same_as(z) and x.name != z.name


def test_expand_broadcasts_both_ways() -> None:
    compare(helper.make_node("Expand", ["x", "s"], ["y"]), {"x": floats(2, 1, 6)}, {"s": np.array([3, 1])})


@pytest.mark.parametrize("count", [3, 2])
def test_split_into_parts_of_which_the_last_is_smaller(count: int) -> None:
    node = helper.make_node("Split", ["x"], [f"y{i}" for i in range(count)], axis=1, num_outputs=count)
    compare(node, {"x": floats(2, 7)})


@pytest.mark.parametrize("repeats", [(1, 2), (3, 1), (2, 0)])
def test_repetitions_that_are_inputs(repeats: tuple[int, int]) -> None:
    node = helper.make_node("Tile", ["x", "r"], ["y"])
    compare(node, {"x": floats(2, 3), "r": np.array(repeats)})


@pytest.mark.parametrize("reader", ["Shape", "Size", "Exp", "Reshape"])
@pytest.mark.parametrize("dims", [[2, 3, 4], [2, "n", 4]], ids=["fixed", "symbolic"])
def test_a_slice_that_ends_before_it_begins_has_an_extent_of_0(reader: str, dims: list[Any]) -> None:
    """TVM's converter gives it an extent of -2, which other nodes read."""
    cuts = {"starts": np.array([3]), "ends": np.array([1]), "axes": np.array([2])}
    nodes = [
        helper.make_node("Slice", ["x", *cuts], ["none"]),
        helper.make_node(reader, ["none", "wanted"] if reader == "Reshape" else ["none"], ["y"]),
    ]
    constants = {**cuts, "wanted": np.array([1, 6, 0])}
    compare(nodes, {"x": floats(2, 3, 4)}, constants, dims={"x": dims})
