# SPDX-License-Identifier: Apache-2.0
"""Element-wise operators with all their attributes compute what ONNX Runtime does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.importers.onnx.runs import RNG, compare, floats, model
from tvm_stitch.importers.onnx.honoured.check import UnsupportedModel
from tvm_stitch.importers.onnx.load import from_onnx

X = {"x": np.concatenate([floats(6) * 3, np.array([0, -0.0, 100, -100], "float32")])}
INTEGERS = {"x": RNG.integers(-20, 20, 12), "y": np.where(RNG.random(12) < 0.5, -3, 5)}


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("negative", [0, 1])
def test_signs_of_infinities(positive: int, negative: int) -> None:
    node = helper.make_node("IsInf", ["x"], ["y"], detect_positive=positive, detect_negative=negative)
    compare(node, {"x": np.array([np.inf, -np.inf, 1, np.nan], "float32")})


@pytest.mark.parametrize(
    ("op", "how"),
    [
        ("Elu", {"alpha": 0.7}),
        ("Celu", {"alpha": 0.7}),
        ("Selu", {"alpha": 1.2, "gamma": 0.8}),
        ("ThresholdedRelu", {"alpha": 0.5}),
        ("Shrink", {"lambd": 0.4, "bias": 0.2}),
        ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
        ("Gelu", {"approximate": "tanh"}),
        ("Mish", {}),
        ("Softplus", {}),
    ],
)
def test_activations(op: str, how: dict[str, Any]) -> None:
    compare(helper.make_node(op, ["x"], ["y"], **how), X)


def test_a_threshold_passes_infinities() -> None:
    node = helper.make_node("ThresholdedRelu", ["x"], ["y"], alpha=0.5)
    compare(node, {"x": np.array([np.inf, -np.inf], "float32")})


@pytest.mark.parametrize("fmod", [0, 1])
def test_remainders(fmod: int) -> None:
    compare(helper.make_node("Mod", ["x", "y"], ["z"], fmod=fmod), INTEGERS)


def test_remainders_of_floats_need_fmod() -> None:
    with pytest.raises(UnsupportedModel, match="set fmod = 1"):
        from_onnx(model(helper.make_node("Mod", ["x", "y"], ["z"]), {"x": floats(3), "y": floats(3)}))


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts_by_the_width_and_more(direction: str) -> None:
    inputs = {"x": np.array([200, 17, 255, 9], "uint8"), "y": np.array([1, 8, 9, 0], "uint8")}
    proto = model(helper.make_node("BitShift", ["x", "y"], ["z"], direction=direction), inputs)
    from tests.importers.onnx.runs import computed

    wanted = {"LEFT": [144, 0, 0, 9], "RIGHT": [100, 0, 0, 9]}[direction]
    assert computed(proto, inputs)[0].tolist() == wanted


@pytest.mark.parametrize("exponents", ["float32", "int64"])
def test_powers_of_another_type(exponents: str) -> None:
    compare(
        helper.make_node("Pow", ["x", "p"], ["y"]),
        {"x": abs(floats(3, 4)), "p": np.array([1, 2, 0, 3], exponents)},
    )


def test_bounds_of_one_side() -> None:
    compare(helper.make_node("Clip", ["x", "", "h"], ["y"]), X, {"h": np.float32(0.5)})
    compare(helper.make_node("Clip", ["x"], ["y"], min=-0.5, max=0.25), X, opset=6)


@pytest.mark.parametrize("how", [{}, {"k": 1}, {"k": -1, "dtype": 7}])
def test_diagonals(how: dict[str, Any]) -> None:
    compare(helper.make_node("EyeLike", ["x"], ["y"], **how), {"x": floats(3, 4)})


def test_nothing_is_dropped_at_inference() -> None:
    compare(helper.make_node("Dropout", ["x", "r"], ["y", "m"]), X, {"r": np.float32(0.4)})
    node = helper.make_node("Dropout", ["x", "r", "t"], ["y"])
    with pytest.raises(UnsupportedModel, match="training_mode"):
        from_onnx(model(node, X, {"r": np.float32(0.4), "t": np.array(True)}))


def test_the_mean_of_tensors() -> None:
    compare(helper.make_node("Mean", ["x", "y", "x"], ["z"]), {"x": floats(2, 3), "y": floats(3)})
