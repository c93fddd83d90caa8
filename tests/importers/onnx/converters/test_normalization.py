# SPDX-License-Identifier: Apache-2.0
"""Normalizations with all their results compute what ONNX Runtime does."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.importers.onnx.runs import compare, floats, model
from tvm_stitch.importers.onnx.honoured.check import UnsupportedModel
from tvm_stitch.importers.onnx.load import from_onnx

X = {"x": floats(2, 4, 5)}
STATISTICS = {"s": floats(4), "b": floats(4), "m": floats(4), "v": floats(4) ** 2 + 0.1}


@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_normalization_with_mean_and_deviation(axis: int) -> None:
    weights = {"s": floats(*X["x"].shape[axis:]), "b": floats(*X["x"].shape[axis:])}
    node = helper.make_node("LayerNormalization", ["x", "s", "b"], ["y", "m", "d"], axis=axis, epsilon=1e-3)
    compare(node, X, weights)
    compare(helper.make_node("LayerNormalization", ["x", "s"], ["y"], axis=axis), X, {"s": weights["s"]})


def test_batch_normalization_in_training() -> None:
    names = ["x", "s", "b", "m", "v"]
    node = helper.make_node("BatchNormalization", names, ["y", "rm", "rv"], training_mode=1, momentum=0.7)
    compare(node, X, STATISTICS, opset=15)
    compare(helper.make_node("BatchNormalization", names, ["y"], epsilon=1e-2), X, STATISTICS)


def test_batch_normalization_of_an_old_set_in_training_is_refused() -> None:
    node = helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "rm"])
    with pytest.raises(UnsupportedModel, match="results of training"):
        from_onnx(model(node, X, STATISTICS, opset=9))


@pytest.mark.parametrize("size", [3, 5])
def test_neighbouring_channels(size: int) -> None:
    compare(
        helper.make_node("LRN", ["x"], ["y"], size=size, alpha=0.3, beta=0.6, bias=1.5),
        {"x": floats(1, 6, 3, 2)},
    )


def test_groups_and_instances() -> None:
    weights = {"s": floats(4), "b": floats(4)}
    compare(helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2), X, weights)
    compare(helper.make_node("InstanceNormalization", ["x", "s", "b"], ["y"], epsilon=1e-2), X, weights)
    compare(helper.make_node("MeanVarianceNormalization", ["x"], ["y"], axes=[0, 2]), X)


@pytest.mark.parametrize("p", [1, 2])
def test_norms_of_zero(p: int) -> None:
    x = floats(3, 4)
    x[1] = 0
    compare(helper.make_node("LpNormalization", ["x"], ["y"], p=p, axis=-1), {"x": x})


def test_root_mean_square() -> None:
    compare(
        helper.make_node("RMSNormalization", ["x", "s"], ["y"], epsilon=1e-3), X, {"s": floats(5)}, opset=23
    )
    assert np.isfinite(X["x"]).all()
