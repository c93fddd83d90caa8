# SPDX-License-Identifier: Apache-2.0
"""Resize with all its attributes computes what ONNX Runtime does, or is refused where the two definitions differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.importers.onnx.runs import compare, floats, model
from tvm_stitch.importers.onnx.honoured.check import UnsupportedModel
from tvm_stitch.importers.onnx.load import from_onnx

X = {"x": floats(1, 2, 8, 6)}


def by_sizes(**how: Any) -> onnx.NodeProto:
    return helper.make_node("Resize", ["x", "", "", "z"], ["y"], **how)


def by_scales(**how: Any) -> onnx.NodeProto:
    return helper.make_node("Resize", ["x", "", "s"], ["y"], **how)


@pytest.mark.parametrize("mode", ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric"])
@pytest.mark.parametrize("scales", [(1.7, 0.55), (2.0, 3.0)])
def test_scales(mode: str, scales: tuple[float, float]) -> None:
    constants = {"s": np.array([1, 1, *scales], "float32")}
    compare(by_scales(mode="linear", coordinate_transformation_mode=mode), X, constants, opset=19)


@pytest.mark.parametrize(
    "how",
    [
        {"mode": "cubic"},
        {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
        {"mode": "linear", "antialias": 1},
        {"mode": "cubic", "antialias": 1},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        {"mode": "nearest", "nearest_mode": "ceil"},
        {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
    ],
)
def test_sizes(how: dict[str, Any]) -> None:
    compare(by_sizes(**how), X, {"z": np.array([1, 2, 5, 9])}, opset=19, rtol=1e-3)


@pytest.mark.parametrize("how", ["floor", "ceil", "round_prefer_floor"])
def test_ties_of_the_nearest_element(how: str) -> None:
    """At 3 / 0.6 float32 has 5, and float64 less, as 0.6 is rounded."""
    node = by_scales(mode="nearest", nearest_mode=how, coordinate_transformation_mode="asymmetric")
    compare(node, {"x": floats(1, 1, 10, 30)}, {"s": np.array([1, 1, 0.6, 0.7], "float32")}, opset=19)


def test_one_row_or_column_is_read_at_the_first_one() -> None:
    node = by_sizes(mode="cubic", coordinate_transformation_mode="pytorch_half_pixel")
    compare(node, X, {"z": np.array([1, 2, 1, 9])}, opset=19, rtol=1e-3)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_the_aspect_ratio_is_kept(policy: str) -> None:
    node = by_sizes(mode="nearest", keep_aspect_ratio_policy=policy, axes=[2, 3])
    compare(node, X, {"z": np.array([4, 5])}, opset=19)


def test_a_region_with_a_value_outside() -> None:
    node = helper.make_node(
        "Resize", ["x", "r", "", "z"], ["y"], mode="linear", extrapolation_value=7.0,
        coordinate_transformation_mode="tf_crop_and_resize",
    )  # fmt: skip
    roi = np.array([0, 0, 0.2, -0.3, 1, 1, 1.4, 0.8], "float32")
    compare(node, X, {"r": roi, "z": np.array([1, 2, 5, 4])}, opset=19, rtol=1e-3)


def test_corners_by_a_scale_that_gives_no_whole_number_are_refused() -> None:
    proto = model(by_scales(mode="linear", coordinate_transformation_mode="align_corners"), X,
                  {"s": np.array([1, 1, 1.7, 1], "float32")}, opset=19)  # fmt: skip
    with pytest.raises(UnsupportedModel, match="align_corners with the scale 1.7 of 8 elements"):
        from_onnx(proto)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample(mode: str) -> None:
    node = helper.make_node("Upsample", ["x", "s"], ["y"], mode=mode)
    compare(node, X, {"s": np.array([1, 1, 2, 3], "float32")}, opset=9)


DYNAMIC = [
    helper.make_node("Shape", ["x"], ["shape"], end=2),
    helper.make_node("Concat", ["shape", "hw"], ["z"], axis=0),
    by_sizes(mode="linear"),
]


@pytest.mark.parametrize("images", [1, 3])
def test_sizes_that_keep_a_symbolic_dimension(images: int) -> None:
    compare(
        DYNAMIC,
        {"x": floats(images, 2, 8, 6)},
        {"hw": np.array([5, 9])},
        dims={"x": ["n", 2, 8, 6]},
    )


SIDES = {"x": [1, 2, "h", "w"]}
NEAREST = [("nearest", {"nearest_mode": mode}) for mode in ("round_prefer_ceil", "floor", "ceil")]


@pytest.mark.parametrize("sides", [(8, 6), (13, 25)])
@pytest.mark.parametrize(
    "coordinates", ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
)
def test_scales_of_symbolic_dimensions(coordinates: str, sides: tuple[int, int]) -> None:
    """All ways to interpolate in one model, one behind the other."""
    ways: list[tuple[str, dict[str, Any]]] = [("linear", {}), ("cubic", {})]
    ways += [("nearest", {}), *NEAREST] if coordinates != "half_pixel_symmetric" else []
    nodes, results = [], []
    for at, (mode, more) in enumerate(ways):
        given = {"mode": mode, "coordinate_transformation_mode": coordinates, **more}
        nodes.append(helper.make_node("Resize", ["x", "", "scales"], [f"y{at}"], **given))
        nodes.append(helper.make_node("Flatten", [f"y{at}"], [f"z{at}"], axis=2))
        results.append(f"z{at}")
    nodes.append(helper.make_node("Concat", results, ["y"], axis=1))
    scales = np.array([1, 1, 2, 1.5], "float32")
    compare(nodes, {"x": floats(1, 2, *sides)}, {"scales": scales}, dims=SIDES)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_sizes_of_other_symbolic_dimensions(mode: str) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Add", ["shape", "more"], ["z"]),
        by_sizes(mode=mode),
    ]
    compare(nodes, X, {"more": np.array([0, 0, 3, 2])}, dims=SIDES)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"antialias": 1, "mode": "linear"}, "antialias or exclude_outside needs fixed dimensions"),
        (
            {"coordinate_transformation_mode": "half_pixel_symmetric"},
            "nearest with half_pixel_symmetric needs",
        ),
        ({"scales": 1 / 3}, "is rounded; give the size of the result"),
    ],
)
def test_symbolic_dimensions_that_are_refused(given: dict[str, Any], said: str) -> None:
    scale = given.pop("scales", 2.0)
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **given)
    proto = model(node, X, {"scales": np.array([1, 1, scale, 1], "float32")}, dims=SIDES)
    with pytest.raises(UnsupportedModel, match=said):
        from_onnx(proto)
