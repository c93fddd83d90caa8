# SPDX-License-Identifier: Apache-2.0
"""Convolutions with all their attributes compute what ONNX Runtime does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.importers.onnx.runs import RNG, compare, floats

X = {"x": floats(1, 2, 5, 6)}
W = {"w": floats(3, 2, 3, 3), "b": floats(3)}


@pytest.mark.parametrize(
    "how",
    [
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER", "strides": [2, 1]},
        {"auto_pad": "VALID", "dilations": [2, 1]},
        {"pads": [1, 0, 2, 1], "kernel_shape": [3, 3]},
    ],
)
def test_conv(how: dict[str, Any]) -> None:
    compare(helper.make_node("Conv", ["x", "w", "b"], ["y"], **how), X, W)


@pytest.mark.parametrize(
    "how",
    [
        {"strides": [2, 2], "output_shape": [10, 12]},
        {"strides": [2, 2], "output_shape": [9, 12], "auto_pad": "SAME_LOWER"},
        {"strides": [2, 2], "output_shape": [10, 11], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 3], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
        {"strides": [3, 3], "output_padding": [2, 1], "dilations": [2, 1], "pads": [1, 0, 0, 1]},
    ],
)
def test_conv_transpose(how: dict[str, Any]) -> None:
    compare(helper.make_node("ConvTranspose", ["x", "w"], ["y"], **how), X, {"w": floats(2, 3, 3, 3)})


def test_quantized_conv_with_a_zero_point_of_each_channel() -> None:
    node = helper.make_node("QLinearConv", list("xszktuopb"), ["y"], pads=[1, 1, 1, 1])
    constants = {
        "s": np.float32(0.02), "z": np.uint8(100), "t": floats(3) ** 2 + 0.01, "u": np.zeros(3, "int8"),
        "o": np.float32(0.05), "p": np.uint8(120), "b": np.array([1, 200, -3], "int32"),
        "k": RNG.integers(-128, 128, (3, 2, 3, 3)).astype("int8"),
    }  # fmt: skip
    compare(node, {"x": RNG.integers(0, 256, (1, 2, 5, 5)).astype("uint8")}, constants, atol=1)


def test_conv_of_integers_pads_with_the_zero_point() -> None:
    node = helper.make_node("ConvInteger", list("xwz"), ["y"], pads=[1, 1, 1, 1])
    weights = RNG.integers(0, 256, (3, 2, 3, 3)).astype("uint8")
    compare(node, {"x": RNG.integers(0, 256, (1, 2, 5, 5)).astype("uint8")}, {"w": weights, "z": np.uint8(7)})
