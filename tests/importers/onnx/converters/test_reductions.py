# SPDX-License-Identifier: Apache-2.0
"""Reductions are ONNX Runtime's: attributes, integers, infinities, and nothing to reduce."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.importers.onnx.runs import RNG, compare, computed, expected, model
from tvm_stitch.importers.onnx.honoured.check import UnsupportedModel
from tvm_stitch.importers.onnx.load import from_onnx

NAMED = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceSumSquare")
REDUCTIONS = (*NAMED, "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum")
AXES = (None, (), (0,), (-1,), (0, 1))


def reductions(
    x: np.ndarray, ops: Sequence[str], axes: Sequence[tuple[int, ...] | None] = AXES, dims: Any = None
) -> onnx.ModelProto:
    """Return a model with a node for each operator, with and without axes, kept axes and ``noop_with_empty_axes``."""
    nodes, constants = [], {"a" + "".join(map(str, a)): np.array(a, "int64") for a in axes if a is not None}
    for op, along, keep, none in itertools.product(ops, axes, (0, 1), (0, 1)):
        inputs = ["x"] if along is None else ["x", "a" + "".join(map(str, along))]
        made = helper.make_node(
            op,
            inputs,
            [f"y{len(nodes)}"],
            keepdims=keep,
            noop_with_empty_axes=none,
            name=f"{op}{along}{keep}{none}",
        )
        nodes.append(made)
    proto = model(nodes, {"x": x}, constants, 20, {"x": dims} if dims else None)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=node.output[0]) for node in nodes)
    return proto


def check(proto: onnx.ModelProto, x: np.ndarray, rtol: float = 1e-5) -> None:
    """Assert that all results of a model are ONNX Runtime's."""
    got, want = computed(proto, {"x": x}), expected(proto, {"x": x})
    for node, ours, theirs in zip(proto.graph.node, got, want, strict=True):
        assert ours.dtype == theirs.dtype, node.name
        np.testing.assert_allclose(ours, theirs, rtol, 1e-5, err_msg=node.name)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_attributes(dtype: str) -> None:
    """``noop_with_empty_axes`` was refused where an operator has an element-wise part."""
    x = np.array([[1, 2, 7, 3], [5, 5, 4, 5], [9, 1, 1, 1]], dtype)
    check(reductions(x, REDUCTIONS), x)


def test_integers_of_both_signs() -> None:
    """TVM does not take the logarithm of integers, and their import was refused."""
    x = np.array([[-3, -2, -2, 40], [7, 7, 7, 7], [0, 0, 0, 0]], "int32")
    check(reductions(x, ["ReduceLogSumExp", "ReduceL1", "ReduceL2", "ReduceMean"]), x)


def test_infinities() -> None:
    """TVM subtracts an infinite maximum, which makes NaN."""
    x = np.array([[np.inf, -np.inf, 1, 2], [-np.inf] * 4, [1000, -5, 999, 5]], "float32")
    check(reductions(x, ["ReduceLogSumExp"]), x)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("dims", [None, ["n", "m"]])
def test_nothing(dtype: str, dims: Any) -> None:
    """Axes are chosen so that ONNX Runtime keeps to the shapes of its own shape inference."""
    x = np.zeros((0, 4), dtype)
    numbers = [op for op in REDUCTIONS if op != "ReduceMean" or dtype == "int32"]
    check(reductions(x, numbers, (None, (0,), (0, 1)), dims), x)


def test_means_of_no_floats_are_nan() -> None:
    x = np.zeros((3, 0), "float32")
    node = helper.make_node("ReduceMean", ["x", "a"], ["y"], keepdims=0)
    (mean,) = computed(model(node, {"x": x}, {"a": np.array([1])}), {"x": x})
    assert mean.shape == (3,) and np.isnan(mean).all()


def test_integer_means_of_dynamic_axes() -> None:
    """The number of elements had to be fixed."""
    x = np.array([[5, -8, 0], [-1, -1, -5]], "int32")
    check(reductions(x, ["ReduceMean"], dims=["n", "m"]), x)


def positions(x: np.ndarray, dims: Any = None) -> onnx.ModelProto:
    """Return a model with the positions of extremes along each axis, the first and the last ones."""
    nodes = [
        helper.make_node(
            op, ["x"], [f"y{op}{axis}{keep}{last}"], axis=axis, keepdims=keep, select_last_index=last
        )
        for op in ("ArgMax", "ArgMin")
        for axis, keep, last in itertools.product((0, 1, -1), (0, 1), (0, 1))
    ]
    proto = model(nodes, {"x": x}, None, 13, {"x": dims} if dims else None)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=node.output[0]) for node in nodes)
    return proto


@pytest.mark.parametrize("dims", [None, ["n", "m"]])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64"])
def test_positions(dtype: str, dims: Any) -> None:
    """NaN is the extreme, as in ONNX's reference. ONNX Runtime's answer depends on where a NaN is."""
    x = np.array([[1, 3, 3, -2], [5, 5, 5, 5], [-128, -7, -7, -128]])
    if dtype.startswith("float"):
        x = np.concatenate([x, [[np.nan, 3, np.nan, 1], [0, np.nan, np.inf, 0], [-np.inf] * 4]])
    x = x.astype(dtype)
    proto = positions(x, dims)
    for name, got, want in zip(
        proto.graph.node,
        computed(proto, {"x": x}),
        ReferenceEvaluator(proto).run(None, {"x": x}),
        strict=True,
    ):
        assert got.dtype == want.dtype == np.int64
        np.testing.assert_array_equal(got, want, err_msg=name.output[0])


def test_positions_along_negative_axes_of_old_models() -> None:
    compare(
        helper.make_node("ArgMax", ["x"], ["y"], axis=-2),
        {"x": RNG.random((3, 4)).astype("float32")},
        opset=8,
    )


@pytest.mark.parametrize("last", [0, 1])
def test_positions_in_nothing_are_refused(last: int) -> None:
    """They were -1 or 0."""
    node = helper.make_node("ArgMin", ["x"], ["y"], axis=1, select_last_index=last)
    with pytest.raises(UnsupportedModel, match=r"ArgMin.*empty dimension is an extreme: axis 1 of \[3, 0\]"):
        from_onnx(model(node, {"x": np.zeros((3, 0), "float32")}, opset=13))


def test_extremes_of_booleans() -> None:
    compare(
        helper.make_node("ReduceMax", ["x", "a"], ["y"]),
        {"x": RNG.random((3, 4)) > 0.7},
        {"a": np.array([1])},
        opset=20,
    )


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
@pytest.mark.parametrize("axes", [[1], [0, 1], []])
def test_means_have_the_type_of_their_input(dtype: str, axes: list[int]) -> None:
    x = np.array([[5, -8, 0, 3], [-1, -1, -1, -2]], dtype)
    compare(helper.make_node("ReduceMean", ["x", "a"], ["y"]), {"x": x}, {"a": np.array(axes, "int64")})


@pytest.mark.parametrize("operator", ["ReduceL2", "ReduceLogSum"])
def test_roots_and_logarithms_of_integers_are_rounded_towards_zero(operator: str) -> None:
    """TVM takes the root of an integer, and its import was refused."""
    x = np.array([[3, 4, 9], [2, 1, 5]], "int32")
    compare(helper.make_node(operator, ["x", "axes"], ["y"]), {"x": x}, {"axes": np.array([1])}, opset=18)
    compare(helper.make_node(operator, ["x"], ["y"], axes=[-2], keepdims=0), {"x": x}, opset=13)
