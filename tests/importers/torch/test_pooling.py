# SPDX-License-Identifier: Apache-2.0
"""Windows of every kind, pooled as PyTorch pools them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from tests.importers.torch.programs import compare  # noqa: E402
from tests.importers.torch.test_indexing import check, compiled, numbers, run  # noqa: E402
from tvm_stitch.importers.torch.converters import torch_converters  # noqa: E402

Pools = Callable[[Any], list[Any]]

OF_IMAGES: dict[str, Pools] = {
    "maxima": lambda x: [
        F.max_pool2d(x, 2),
        F.max_pool2d(x, 3, 2, 1),
        F.max_pool2d(x, (2, 3), (1, 2), (1, 0)),
        F.max_pool2d(x, 3, dilation=2),
        F.max_pool2d(x[0], 2),
    ],
    "maxima of windows that are cut off": lambda x: [
        F.max_pool2d(x, 2, ceil_mode=True),
        F.max_pool2d(x, 2, 3, 1, ceil_mode=True),
        F.max_pool2d(x, 3, 2, 1, dilation=2, ceil_mode=True),
        F.max_pool2d(x, (2, 3), (1, 2), (1, 1), ceil_mode=True),
    ],
    "averages": lambda x: [
        F.avg_pool2d(x, 2),
        F.avg_pool2d(x, 3, 2, 1),
        F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        F.avg_pool2d(x[0], (2, 3), (1, 2)),
    ],
    "averages of windows that are cut off": lambda x: [
        F.avg_pool2d(x, 2, ceil_mode=True),
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        F.avg_pool2d(x, 2, 3, 1, ceil_mode=True),
        F.avg_pool2d(x, 3, 4, 1, ceil_mode=True),
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        F.avg_pool2d(x, (3, 2), (1, 2), (1, 0), ceil_mode=True, count_include_pad=False),
    ],
    "averages by a divisor": lambda x: [
        F.avg_pool2d(x, 2, divisor_override=3),
        F.avg_pool2d(x, 3, 2, 1, divisor_override=1),
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=5),
        F.avg_pool2d(x, 3, 2, 1, count_include_pad=False, divisor_override=5),
    ],
    "places of maxima": lambda x: [
        *F.max_pool2d(x, 2, return_indices=True),
        *F.max_pool2d(x, 3, 2, 1, return_indices=True),
        *F.max_pool2d(x, (2, 3), (1, 2), (1, 1), ceil_mode=True, return_indices=True),
        *F.max_pool2d(x, 3, 1, 1, dilation=2, return_indices=True),
        F.max_pool2d(x[0], 2, return_indices=True)[1],
        F.max_pool2d((x * 4).round(), 3, 2, return_indices=True)[1],
    ],
    "maxima placed back": lambda x: [
        F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=x.shape[-2:])
    ],
    "adaptive maxima": lambda x: [
        F.adaptive_max_pool2d(x, 1),
        F.adaptive_max_pool2d(x, 2),
        F.adaptive_max_pool2d(x, (3, 4)),
        F.adaptive_max_pool2d(x[0], (5, 1)),
        F.adaptive_max_pool1d(x[0], 4),
    ],
}


@pytest.mark.parametrize("side", [9, 10, 11])
@pytest.mark.parametrize("name", OF_IMAGES)
def test_images(name: str, side: int) -> None:
    check(OF_IMAGES[name], numbers(2, 3, side, side + 2))


def test_averages_of_integers_are_rounded_towards_zero() -> None:
    pooled: dict[str, Pools] = {
        "plain": lambda x: F.avg_pool2d(x, 2),
        "border": lambda x: F.avg_pool2d(x, 3, 2, 1),
        "no border": lambda x: F.avg_pool2d(x, (3, 2), (2, 1), 1, count_include_pad=False),
        "no batch": lambda x: F.avg_pool2d(x[0], (2, 3), (1, 2)),
        "cut off": lambda x: F.avg_pool2d(x, 3, 4, 1, ceil_mode=True),
        "by a divisor": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False, divisor_override=-5),
        "rows": lambda x: F.avg_pool1d(x[0], 3, 2, 1),
        "volumes": lambda x: F.avg_pool3d(x, (2, 3, 2)),
        "responses": lambda x: F.local_response_norm(x, 2),
    }
    compare(pooled, (numbers(2, 3, 8, 11) * 9).long())


def test_rows() -> None:
    def pooled(x: Any) -> list[Any]:
        return [
            F.max_pool1d(x, 3, 2, 1),
            F.max_pool1d(x, 2, ceil_mode=True),
            F.avg_pool1d(x, 3, 2, 1, ceil_mode=True),
            F.avg_pool1d(x, 4),
        ]

    check(pooled, numbers(2, 3, 12))
    check(pooled, numbers(2, 3, 13))


def test_volumes() -> None:
    def pooled(x: Any) -> list[Any]:
        return [
            F.max_pool3d(x, 2),
            F.max_pool3d(x, 3, 2, 1, ceil_mode=True),
            F.avg_pool3d(x, 2, divisor_override=3),
            F.avg_pool3d(x, 3, 2, 1, ceil_mode=True),
        ]

    check(pooled, numbers(1, 2, 5, 6, 7))


def test_a_symbolic_batch() -> None:
    def pooled(x: Any) -> list[Any]:
        return [
            *F.max_pool2d(x, 3, 2, 1, return_indices=True),
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            F.adaptive_max_pool2d(x, 3),
        ]

    batch = {"args": ({0: torch.export.Dim("batch", min=1, max=9)},)}
    function = compiled(pooled, numbers(3, 2, 8, 9), dynamic=batch, custom_convert_map=torch_converters())
    for count in (1, 3, 8):
        x = numbers(count, 2, 8, 9)
        for got, want in zip(function(tvm.runtime.tensor(x.numpy())), pooled(x), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["averages by a divisor", "places of maxima"])
def test_tvm_still_gives_other_numbers(name: str) -> None:
    x = numbers(2, 3, 9, 11)
    function = OF_IMAGES[name]
    found = run(lambda x: function(x)[:2], x)
    wanted = [each.numpy() for each in function(x)[:2]]
    assert not all(np.allclose(got, want) for got, want in zip(found, wanted)), "no converter is needed"


@pytest.mark.parametrize(
    ("shape", "image", "options"),
    [
        ((2, 6 * 9, 49), (14, 14), {"kernel_size": 3, "padding": 1, "stride": 2}),
        ((1, 3 * 4, 12), (6, 8), {"kernel_size": 2, "stride": 2}),
        (
            (5 * 6, 35),
            (9, 10),
            {"kernel_size": (2, 3), "dilation": (2, 1), "padding": (0, 1), "stride": (1, 2)},
        ),
        ((2, 2 * 25, 36), (10, 10), {"kernel_size": 5}),
    ],
    ids=["overlap", "apart", "no batch", "large windows"],
)
def test_folds(shape: tuple[int, ...], image: tuple[int, int], options: dict[str, Any]) -> None:
    """Each element of the image is a sum of elements of windows. Sums of small windows are part of other kernels."""
    check(lambda x: [F.fold(x * 2, image, **options).relu()], numbers(*shape))
