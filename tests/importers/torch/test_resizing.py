# SPDX-License-Identifier: Apache-2.0
"""Images resized as PyTorch does it, at sizes and factors that divide nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import tvm

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from tests.importers.torch.programs import compare  # noqa: E402
from tests.importers.torch.test_indexing import check, compiled, numbers, run  # noqa: E402
from tvm_stitch.importers.torch.converters import torch_converters  # noqa: E402

HOW: list[dict[str, Any]] = [
    {"size": (5, 4)},
    {"size": (1, 1)},
    {"size": (12, 7)},
    {"size": (12, 5)},
    {"size": (18, 21)},
    {"size": (13, 10)},
    {"scale_factor": 0.5},
    {"scale_factor": 1.5},
    {"scale_factor": (2.0, 0.6)},
    {"scale_factor": 3.0},
    {"scale_factor": 1.7, "recompute_scale_factor": True},
]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_nearest(how: dict[str, Any]) -> None:
    check(lambda x: [F.interpolate(x, mode="nearest", **how)], numbers(2, 3, 6, 7))


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("how", HOW, ids=str)
def test_bilinear(how: dict[str, Any], corners: bool) -> None:
    def resized(x: Any) -> list[Any]:
        return [F.interpolate(x, mode="bilinear", align_corners=corners, **how)]

    check(resized, numbers(2, 3, 6, 7))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("how", HOW, ids=str)
def test_antialiased(how: dict[str, Any], mode: str, corners: bool) -> None:
    def resized(x: Any) -> list[Any]:
        return [F.interpolate(x, mode=mode, align_corners=corners, antialias=True, **how)]

    check(resized, numbers(2, 3, 6, 7))


OF_BYTES: list[dict[str, Any]] = [{"size": (13, 10)}, {"size": (6, 2)}, {"scale_factor": (0.5, 1.7)}]


@pytest.mark.parametrize(("mode", "channels"), [("bilinear", 5), ("bicubic", 3)])
def test_bytes_are_pytorchs(mode: str, channels: int) -> None:
    resized = {
        f"{how} {corners} {smoothed}": partial(
            F.interpolate, mode=mode, align_corners=corners, antialias=smoothed, **how
        )
        for how in OF_BYTES
        for corners in (False, True)
        for smoothed in (False, True)
    }
    image = torch.randint(0, 256, (2, channels, 6, 7), generator=torch.Generator().manual_seed(channels))
    image[0] = 255 * (image[0] > 127)  # cubics go beyond both ends
    if mode == "bicubic":
        resized["called"] = lambda x: torch.ops.aten.upsample_bicubic2d(x, [9, 4], False)
    compare(resized, image.to(torch.uint8))


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bilinear by a filter"])
def test_a_symbolic_batch(mode: str) -> None:
    name, _, smoothed = mode.partition(" ")
    how = {"antialias": True} if smoothed else {}

    def resized(x: Any) -> Any:
        return F.interpolate(x, scale_factor=1.5, mode=name, **how)

    batch = {"args": ({0: torch.export.Dim("batch", min=1, max=9)},)}
    given = numbers(3, 2, 5, 7)
    function = compiled(resized, given, dynamic=batch, custom_convert_map=torch_converters())
    for count in (1, 3, 8):
        x = numbers(count, 2, 5, 7)
        found = function(tvm.runtime.tensor(x.numpy())).numpy()
        np.testing.assert_allclose(found, resized(x.double()).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "how",
    [
        {"size": (5, 4)},
        {"scale_factor": 1.5, "mode": "bilinear"},
        {"size": (3, 4), "mode": "bilinear", "antialias": True},
    ],
    ids=str,
)
def test_tvm_still_places_pixels_elsewhere(how: dict[str, Any]) -> None:
    x = numbers(2, 3, 6, 7)
    (found,) = run(lambda x: [F.interpolate(x, **how)], x)
    assert np.abs(found - F.interpolate(x, **how).numpy()).max() > 0.01, "the converter is needed no longer"
