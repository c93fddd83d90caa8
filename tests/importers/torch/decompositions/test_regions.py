# SPDX-License-Identifier: Apache-2.0
"""Pooling of regions, against a loop over samples, as torchvision documents it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.importers.torch.programs import compiled, imported
from tvm_stitch.importers.torch.decompositions.regions import region_decompositions, roi_align


def pixel(image: np.ndarray, y: float, x: float) -> float:
    height, width = image.shape
    if not (-1.0 <= y <= height and -1.0 <= x <= width):
        return 0.0
    y, x = min(max(y, 0.0), height - 1), min(max(x, 0.0), width - 1)
    top, left = math.floor(y), math.floor(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    upper = image[top, left] * (1 - (x - left)) + image[top, right] * (x - left)
    lower = image[bottom, left] * (1 - (x - left)) + image[bottom, right] * (x - left)
    return float(upper * (1 - (y - top)) + lower * (y - top))


def expected(images: Any, regions: Any, scale: float, rows: int, columns: int, n: int, aligned: bool) -> Any:
    result = np.zeros((len(regions), images.shape[1], rows, columns))
    for k, (image, *corners) in enumerate(regions.tolist()):
        x1, y1, x2, y2 = (each * scale - 0.5 * aligned for each in corners)
        height, width = (y2 - y1, x2 - x1) if aligned else (max(y2 - y1, 1.0), max(x2 - x1, 1.0))
        for c, i, j in np.ndindex(images.shape[1], rows, columns):
            samples = [
                pixel(
                    images[int(image), c].numpy(),
                    y1 + (i + (a + 0.5) / n) * height / rows,
                    x1 + (j + (b + 0.5) / n) * width / columns,
                )
                for a, b in np.ndindex(n, n)
            ]
            result[k, c, i, j] = np.mean(samples)
    return result


@pytest.mark.parametrize("aligned", [False, True])
def test_regions_are_pooled(aligned: bool) -> None:
    images = torch.randn(2, 3, 7, 9)
    regions = torch.tensor([[0, 1.0, 2.0, 9.0, 8.5], [1, -3.0, 0.5, 4.0, 30.0], [1, 2.0, 2.0, 2.2, 2.1]])
    (got,) = compiled(imported(lambda x, r: roi_align(x, r, 0.7, 2, 3, 2, aligned), images, regions))(
        images, regions
    )
    np.testing.assert_allclose(got, expected(images, regions, 0.7, 2, 3, 2, aligned), rtol=1e-4, atol=1e-5)


def test_the_number_of_samples_must_be_known() -> None:
    assert roi_align(torch.randn(1, 1, 4, 4), torch.zeros(1, 5), 1.0, 2, 2, -1, False) is NotImplemented
    assert len(region_decompositions()) in (0, 1)  # torchvision may be missing
