# SPDX-License-Identifier: Apache-2.0
"""torchvision's operators on regions, with operators of the same names that PyTorch computes here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.importers.torch.decompositions.test_regions import pixel
from tests.importers.torch.programs import compiled, imported
from tvm_stitch.importers.torch import Unsupported

IMAGES = torch.randn(2, 3, 7, 9, generator=torch.Generator().manual_seed(0))
REGIONS = torch.tensor(
    [[0, 1.0, 2.0, 9.0, 8.5], [1, -3.0, 0.5, 4.0, 30.0], [1, 2.0, 2.0, 2.2, 2.1], [0, 0.0, 0.0, 16.0, 1.0]]
)


@pytest.fixture(autouse=True)
def operators() -> Iterator[None]:
    """Operators of torchvision without its library."""
    if hasattr(torch.ops.torchvision, "nms"):
        yield
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define(
        "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width,"
        " int sampling_ratio, bool aligned) -> Tensor"
    )

    def sized(x: Any, rois: Any, scale: float, rows: int, columns: int, ratio: int, aligned: bool) -> Any:
        return x.new_empty((rois.shape[0], x.shape[1], rows, columns))

    def selected(boxes: Any, scores: Any, threshold: float) -> Any:
        return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)

    torch.library.register_fake("torchvision::roi_align", sized, lib=library)
    torch.library.register_fake("torchvision::nms", selected, lib=library)
    yield
    library._destroy()


def pooled(images: Any, regions: Any, scale: float, rows: int, columns: int, aligned: bool) -> np.ndarray:
    """Pool with as many samples as pixels, by loops."""
    result = np.zeros((len(regions), images.shape[1], rows, columns))
    for k, (image, *corners) in enumerate(regions.tolist()):
        x1, y1, x2, y2 = (each * scale - 0.5 * aligned for each in corners)
        height, width = (y2 - y1, x2 - x1) if aligned else (max(y2 - y1, 1.0), max(x2 - x1, 1.0))
        m, n = math.ceil(height / rows), math.ceil(width / columns)
        for c, i, j in np.ndindex(images.shape[1], rows, columns):
            result[k, c, i, j] = np.mean([
                pixel(
                    images[int(image), c].numpy(),
                    y1 + (i + (a + 0.5) / m) * height / rows,
                    x1 + (j + (b + 0.5) / n) * width / columns,
                )
                for a, b in np.ndindex(m, n)
            ])  # fmt: skip
    return result


@pytest.mark.parametrize("aligned", [False, True])
def test_regions_with_as_many_samples_as_pixels(aligned: bool) -> None:
    def function(x: Any, r: Any) -> Any:
        return torch.ops.torchvision.roi_align(x, r, 0.7, 2, 3, -1, aligned)

    (got,) = compiled(imported(function, IMAGES, REGIONS))(IMAGES, REGIONS)
    np.testing.assert_allclose(got, pooled(IMAGES, REGIONS, 0.7, 2, 3, aligned), rtol=1e-4, atol=1e-5)


def kept(boxes: np.ndarray, scores: np.ndarray, threshold: float) -> list[int]:
    found: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        overlaps = []
        for j in found:
            low, high = np.maximum(boxes[i, :2], boxes[j, :2]), np.minimum(boxes[i, 2:], boxes[j, 2:])
            shared = np.prod(np.maximum(high - low, 0))
            areas = sum(np.prod(boxes[k, 2:] - boxes[k, :2]) for k in (i, j))
            overlaps.append(shared / (areas - shared))
        if all(each <= threshold for each in overlaps):
            found.append(int(i))
    return found


def test_boxes_that_are_kept() -> None:
    rng = np.random.default_rng(0)
    corners = rng.random((40, 2)) * 8
    boxes = np.concatenate([corners, corners + 1 + rng.random((40, 2)) * 4], 1).astype("float32")
    scores = rng.standard_normal(40).astype("float32")

    def function(b: Any, s: Any) -> Any:
        chosen = torch.ops.torchvision.nms(b, s, 0.3)
        return chosen, b[chosen]

    tensors = torch.tensor(boxes), torch.tensor(scores)
    numbers, corners = compiled(imported(function, *tensors))(*tensors)
    assert numbers.dtype == np.int64 and 1 < len(numbers) < 40
    assert numbers.tolist() == kept(boxes, scores, 0.3)
    np.testing.assert_array_equal(corners, boxes[numbers])


def test_a_symbolic_number_of_boxes_is_refused() -> None:
    def function(b: Any, s: Any) -> Any:
        return torch.ops.torchvision.nms(b, s, 0.3)

    count = torch.export.Dim("count")
    with pytest.raises(Unsupported, match=r"torchvision::nms.default .*symbolic number"):
        imported(function, torch.zeros(5, 4), torch.zeros(5), dynamic={"tensors": ({0: count}, {0: count})})
