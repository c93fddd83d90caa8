# SPDX-License-Identifier: Apache-2.0
"""Volumes sampled at points of a grid, inside of them, far outside and nowhere."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from tests.importers.torch.programs import compare  # noqa: E402

FAR = (float("nan"), float("inf"), -1e20, -1.0, 1.0)


HOW = {
    "nearest": list(product(("zeros", "border", "reflection"), (False, True))),
    "bilinear": [("zeros", False), ("border", True), ("reflection", False)],
}


@pytest.mark.parametrize("interpolation", HOW)
def test_volumes_at_points(interpolation: str) -> None:
    volume, grid = given()
    for axis in range(3):
        grid[0, axis, 0, :, axis] = torch.tensor(FAR)
    sampled = {
        f"{padding} {aligned}": partial(
            F.grid_sample, mode=interpolation, padding_mode=padding, align_corners=aligned
        )
        for padding, aligned in HOW[interpolation]
    }
    compare(sampled, volume, grid, tolerance=1e-5)


def test_halves_and_one_element() -> None:
    volume, grid = given()
    sampled = {
        "whole": partial(F.grid_sample, align_corners=False),
        "one": lambda x, at: F.grid_sample(
            x[:, :, :1, :1, :1], at, "nearest", padding_mode="reflection", align_corners=True
        ),
    }
    compare(sampled, volume.half(), grid.half(), tolerance=1e-2)


def given() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    return torch.randn(2, 3, 4, 5, 6, generator=draw), 1.5 * torch.randn(2, 3, 2, 5, 3, generator=draw)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_images_of_known_sizes_are_resized(axes: int) -> None:
    """PyTorch's table lacks the decomposition of one of these operators."""
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[axes]
    how = {
        f"{mode} {options}": partial(F.interpolate, mode=mode, **options)
        for mode in (linear, "nearest", "nearest-exact")
        for options in ({"size": 7}, {"scale_factor": 1.6})
    }
    compare(how, torch.randn(2, 3, *(4, 5, 3)[:axes]), tolerance=1e-5)
