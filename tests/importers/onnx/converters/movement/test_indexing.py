# SPDX-License-Identifier: Apache-2.0
"""Operators with indices compute what ONNX Runtime does, with negative indices too."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.importers.onnx.runs import RNG, compare, computed, expected, floats, model
from tvm_stitch.importers.onnx.honoured.check import UnsupportedModel
from tvm_stitch.importers.onnx.load import from_onnx


@pytest.mark.parametrize("kind", ["int64", "float32"])
@pytest.mark.parametrize("axis", [-1, 0])
def test_one_hot_of_a_depth_in_a_list(kind: str, axis: int) -> None:
    constants = {"d": np.array([4], "int64"), "v": np.array([2, 7], kind)}
    compare(
        helper.make_node("OneHot", list("idv"), ["y"], axis=axis),
        {"i": np.array([[0, -1], [3, 9]])},
        constants,
    )


def test_gather_of_negative_indices() -> None:
    compare(
        helper.make_node("Gather", ["x", "i"], ["y"], axis=1),
        {"x": floats(3, 4)},
        {"i": np.array([-1, 0, -4])},
    )
    compare(
        helper.make_node("Gather", ["x", "i"], ["y"], axis=1), {"x": floats(3, 4), "i": np.array([-1, 0, -4])}
    )


def test_an_index_outside_is_refused() -> None:
    proto = model(helper.make_node("Gather", ["x", "i"], ["y"]), {"x": floats(3)}, {"i": np.array([3])})
    with pytest.raises(UnsupportedModel, match="outside of the 3 elements"):
        from_onnx(proto)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
def test_scatter(reduction: str) -> None:
    indices = np.array([[0, -1], [1, 3], [2, 0], [4, 1]])
    node = helper.make_node("ScatterElements", list("xiu"), ["y"], axis=1, reduction=reduction)
    compare(node, {"x": floats(4, 5), "u": floats(4, 2)}, {"i": indices})


@pytest.mark.parametrize("how", [{}, {"reverse": 1}, {"exclusive": 1}, {"reverse": 1, "exclusive": 1}])
def test_sums_along_an_axis(how: dict[str, Any]) -> None:
    compare(helper.make_node("CumSum", ["x", "a"], ["y"], **how), {"x": floats(3, 4)}, {"a": np.int64(-1)})


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad(mode: str) -> None:
    pads = np.array([1, 2, 2, 1])
    compare(
        helper.make_node("Pad", ["x", "p"], ["y"], mode=mode),
        {"x": floats(2, 4, 5)},
        {"p": np.insert(pads, [0, 2], 0)},
    )


@pytest.mark.parametrize("rows", [4, 9])
@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_pads_of_symbolic_dimensions(mode: str, rows: int) -> None:
    node = helper.make_node("Pad", ["x", "pads"], ["y"], mode=mode)
    compare(node, {"x": floats(rows, 3)}, {"pads": np.array([2, 1, 3, 0])}, dims={"x": ["n", 3]})


@pytest.mark.parametrize("columns", [5, 8, 13])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pads_that_depend_on_sizes(mode: str, columns: int) -> None:
    """The columns are filled up to a multiple of 4, as in networks of windows."""
    proto = model(_to_multiples_of_four(mode), {"x": floats(3, columns)}, FOURS, dims={"x": [3, "n"]})
    inputs = {"x": floats(3, columns)}
    np.testing.assert_array_equal(computed(proto, inputs)[0], expected(proto, inputs)[0])


FOURS = {"last": np.array([1]), "four": np.array([4]), "zeros": np.array([0, 0, 0]), "least": np.array([5])}


def _to_multiples_of_four(mode: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Shape", ["x"], ["dims"]),
        helper.make_node("Gather", ["dims", "last"], ["size"]),
        helper.make_node("Neg", ["size"], ["minus"]),
        helper.make_node("Mod", ["minus", "four"], ["more"]),
        helper.make_node("Concat", ["zeros", "more"], ["pads"], axis=0),
        helper.make_node("Pad", ["x", "pads"], ["y"], mode=mode),
    ]


def test_symbolic_pads_that_are_negative_are_refused_by_a_run() -> None:
    nodes = _to_multiples_of_four("constant")
    nodes[2:4] = [helper.make_node("Sub", ["size", "least"], ["more"])]
    proto = model(nodes, {"x": floats(3, 8)}, FOURS, dims={"x": [3, "n"]})
    np.testing.assert_array_equal(computed(proto, {"x": np.ones((3, 8), "float32")})[0].sum(1), [8, 8, 8])
    with pytest.raises(RuntimeError, match="-2 vs. 0"):
        computed(proto, {"x": floats(3, 3)})


def test_negative_pads_cut() -> None:
    constants = {"p": np.array([-1, 1, 2, -2]), "v": np.float32(7)}
    compare(helper.make_node("Pad", ["x", "p", "v"], ["y"]), {"x": floats(3, 4)}, constants)


def test_top_k_of_one_axis() -> None:
    x = RNG.permutation(24).reshape(4, 6).astype("float32")
    node = helper.make_node("TopK", ["x", "k"], ["v", "i"], axis=0, largest=0)
    compare(node, {"x": x}, {"k": np.array([2])})


def test_top_k_of_nothing() -> None:
    node = helper.make_node("TopK", ["x", "k"], ["v", "i"])
    compare(node, {"x": floats(2, 4)}, {"k": np.array([0])})


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode: str) -> None:
    compare(helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=2, mode=mode), {"x": floats(1, 8, 2, 3)})


@pytest.mark.parametrize("axes", [{"batch_axis": 0, "time_axis": 1}, {"batch_axis": 1, "time_axis": 0}])
def test_reverse_sequence(axes: dict[str, int]) -> None:
    compare(
        helper.make_node("ReverseSequence", ["x", "n"], ["y"], **axes),
        {"x": floats(4, 4, 2), "n": np.array([1, 2, 4, 3])},
    )
