# SPDX-License-Identifier: Apache-2.0
"""Regions and boxes: what ONNX Runtime computes, with as many boxes as are selected."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.importers.onnx.runs import RNG, compare, computed, expected, floats, model

REGIONS = {"r": np.array([[1, 2, 9, 11], [0, 0, 15, 15], [-3, -2, 4, 20]], "float32")}


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("pixel", ["half_pixel", "output_half_pixel"])
def test_aligned_regions(mode: str, pixel: str) -> None:
    node = helper.make_node(
        "RoiAlign", list("xrb"), ["y"], mode=mode, coordinate_transformation_mode=pixel, output_height=3,
        output_width=2, sampling_ratio=2, spatial_scale=0.5,
    )  # fmt: skip
    compare(node, {"x": floats(2, 3, 9, 8), **REGIONS}, {"b": np.array([0, 1, 1])})


@pytest.mark.parametrize(("mode", "pixel"), [("avg", "half_pixel"), ("max", "output_half_pixel")])
def test_aligned_regions_with_as_many_samples_as_pixels(mode: str, pixel: str) -> None:
    node = helper.make_node(
        "RoiAlign", list("xrb"), ["y"], mode=mode, coordinate_transformation_mode=pixel, output_height=3,
        output_width=2, spatial_scale=0.9,
    )  # fmt: skip
    regions = {
        "r": np.array([[1, 2, 9, 11], [0, 0, 15, 40], [-3, -2, 4, 20], [5, 5, 5, 5], [5, 4, 2, 1]], "float32")
    }
    compare(node, {"x": floats(2, 3, 19, 18), **regions}, {"b": np.array([0, 1, 1, 0, 1])})


@pytest.mark.parametrize("most", [2**63 - 1, 3])
def test_boxes_that_are_selected_are_gathered(most: int) -> None:
    nodes = [
        helper.make_node("NonMaxSuppression", list("bsmit"), ["n"]),
        helper.make_node("Gather", ["n", "two"], ["k"], axis=1),
        helper.make_node("Reshape", ["k", "flat"], ["f"]),
        helper.make_node("Gather", ["v", "f"], ["y"]),
    ]
    boxes = (RNG.random((1, 30, 4)) * 10).astype("float32")
    inputs = {"b": boxes, "s": RNG.random((1, 1, 30)).astype("float32"), "v": floats(30, 4)}
    constants = {
        "m": np.array([most]), "i": np.array([0.3], "float32"), "t": np.array([0.1], "float32"),
        "two": np.array([2]), "flat": np.array([-1]),
    }  # fmt: skip
    compare(nodes, inputs, constants)


def test_boxes_by_centres_without_thresholds() -> None:
    node = helper.make_node("NonMaxSuppression", list("bsm"), ["y"], center_point_box=1)
    boxes = (RNG.random((1, 8, 4)) * 3 + 0.1).astype("float32")
    compare(node, {"b": boxes, "s": RNG.random((1, 2, 8)).astype("float32")}, {"m": np.array([4])})


def test_boxes_of_negative_scores() -> None:
    node = helper.make_node("NonMaxSuppression", list("bsmit"), ["y"])
    corners = RNG.random((1, 40, 2)) * 8
    boxes = np.concatenate([corners, corners + 1 + RNG.random((1, 40, 2)) * 4], 2).astype("float32")
    constants = {"m": np.array([40]), "i": np.array([0.3], "float32"), "t": np.array([-0.5], "float32")}
    compare(node, {"b": boxes, "s": floats(1, 2, 40)}, constants)


@pytest.mark.parametrize("mode", ["cubic", "linear"])
def test_samples_in_float16_are_those_of_float64(mode: str) -> None:
    """ONNX Runtime has no such kernel. Coordinates in float16 were off by parts of a pixel."""
    x = RNG.standard_normal((1, 2, 61, 93)).astype("float16")
    grid = (RNG.random((1, 7, 5, 2)) * 2 - 1).astype("float16")
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], mode=mode)
    given = {"x": x, "grid": grid}
    (found,) = computed(model(node, given, opset=20), given)
    exact = {name: value.astype("float64") for name, value in given.items()}
    (wanted,) = expected(model(node, exact, opset=20), exact)
    assert found.dtype == "float16"
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)
