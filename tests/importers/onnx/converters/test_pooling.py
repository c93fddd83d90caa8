# SPDX-License-Identifier: Apache-2.0
"""Pooling with all its attributes computes what ONNX Runtime does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.importers.onnx.runs import compare, computed, floats, model

X = {"x": floats(1, 2, 7, 6)}
WINDOWS: list[dict[str, Any]] = [
    {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [3, 3], "strides": [2, 1], "auto_pad": "SAME_LOWER"},
    {"kernel_shape": [3, 3], "pads": [1, 0, 1, 1], "dilations": [2, 1]},
]


@pytest.mark.parametrize("window", WINDOWS)
def test_maxima_and_their_positions(window: dict[str, Any]) -> None:
    compare(helper.make_node("MaxPool", ["x"], ["y"], **window), X)
    compare(helper.make_node("MaxPool", ["x"], ["y", "i"], storage_order=1, **window), X)


@pytest.mark.parametrize("images", [1, 3])
def test_a_symbolic_number_of_images(images: int) -> None:
    node = helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1)
    compare(node, {"x": floats(images, 2, 7, 6)}, dims={"x": ["n", 2, 7, 6]})


@pytest.mark.parametrize("sides", [(7, 6), (12, 9)])
def test_symbolic_sizes(sides: tuple[int, int]) -> None:
    x, dims = {"x": floats(1, 2, *sides)}, {"x": [1, 2, "h", "w"]}
    window = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}
    compare(helper.make_node("MaxPool", ["x"], ["y"], dilations=[2, 1], **window), x, dims=dims)
    compare(helper.make_node("MaxPool", ["x"], ["y"], **window), {"x": x["x"].astype("int8")}, dims=dims)
    for include in (0, 1):
        compare(
            helper.make_node("AveragePool", ["x"], ["y"], count_include_pad=include, **window), x, dims=dims
        )


@pytest.mark.parametrize("sides", [(7, 6), (8, 9), (9, 11), (10, 4), (4, 13)])
@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": [3, 2], "strides": [2, 3]},
        {"kernel_shape": [2, 3], "strides": [2, 3], "pads": [1, 1, 1, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    ],
    ids=str,
)
def test_symbolic_sizes_with_a_last_window_that_is_not_whole(
    window: dict[str, Any], sides: tuple[int, int]
) -> None:
    x, dims = {"x": floats(1, 2, *sides)}, {"x": [1, 2, "h", "w"]}
    for kind in ("MaxPool", "AveragePool"):
        compare(helper.make_node(kind, ["x"], ["y"], ceil_mode=1, **window), x, dims=dims)


def test_windows_larger_than_a_symbolic_size_are_refused_by_a_run() -> None:
    proto = model(
        helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 2]), X, dims={"x": [1, 2, "h", "w"]}
    )
    with pytest.raises(Exception, match="match_cast|mismatch"):
        computed(proto, {"x": floats(1, 2, 2, 6)})


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("window", WINDOWS)
def test_means(window: dict[str, Any], include: int) -> None:
    compare(helper.make_node("AveragePool", ["x"], ["y"], count_include_pad=include, **window), X)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms(p: int) -> None:
    compare(
        helper.make_node("LpPool", ["x"], ["y"], p=p, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 0, 1]),
        X,
    )
    compare(helper.make_node("GlobalLpPool", ["x"], ["y"], p=p), X)


def test_maxima_go_back_to_their_positions() -> None:
    indices = np.array([[[[5, 7], [13, 15]]]])
    node = helper.make_node("MaxUnpool", ["x", "i", "s"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    compare(node, {"x": floats(1, 1, 2, 2)}, {"i": indices, "s": np.array([1, 1, 4, 4])})


@pytest.mark.parametrize(
    ("channels", "image", "block", "given"),
    [
        (3, [6, 7], [2, 3], {}),
        (2, [9, 8], [3, 2], {"strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 3]}),
        (1, [5, 4, 6], [2, 2, 3], {"strides": [1, 2, 3]}),
    ],
)
def test_windows_are_added_up(
    channels: int, image: list[int], block: list[int], given: dict[str, Any]
) -> None:
    rank = len(block)
    strides, pads = given.get("strides", [1] * rank), given.get("pads", [0] * 2 * rank)
    reach = [(b - 1) * d + 1 for b, d in zip(block, given.get("dilations", [1] * rank))]
    windows = [(image[a] + pads[a] + pads[rank + a] - reach[a]) // strides[a] + 1 for a in range(rank)]
    x = floats(2, channels * math.prod(block), math.prod(windows))
    node = helper.make_node("Col2Im", list("xib"), ["y"], **given)
    compare(node, {"x": x}, {"i": np.array(image), "b": np.array(block)})
