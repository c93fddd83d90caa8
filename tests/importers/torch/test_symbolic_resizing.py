# SPDX-License-Identifier: Apache-2.0
"""Images of symbolic sizes are resized at PyTorch's pixels."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.functional import interpolate

from tests.importers.torch.programs import Function, compare, refusal

SIDES = (({2: torch.export.Dim("h", min=4, max=99), 3: torch.export.Dim("w", min=4, max=99)},),)


def grown(x: torch.Tensor, mode: str, **options: Any) -> torch.Tensor:
    return interpolate(x, size=(x.shape[2] + 3, x.shape[3] * 2), mode=mode, **options)


FUNCTIONS: dict[str, dict[str, Function]] = {
    mode: {
        "factor": partial(interpolate, scale_factor=2.0, mode=mode),
        "fraction": partial(interpolate, scale_factor=(1.5, 0.75), mode=mode),
        "fixed": partial(interpolate, size=(7, 9), mode=mode),
        "size": partial(grown, mode=mode),
        **({"corners": partial(grown, mode=mode, align_corners=True)} if mode.startswith("bi") else {}),
    }
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
}


@pytest.mark.parametrize("mode", FUNCTIONS)
def test_pixels_are_pytorchs(mode: str) -> None:
    torch.manual_seed(0)
    others = [[torch.randn(1, 2, *sides)] for sides in ((12, 6), (5, 13))]
    compare(FUNCTIONS[mode], torch.randn(1, 2, 8, 10), dynamic=SIDES, others=others, tolerance=2e-5)


def test_signals_and_volumes() -> None:
    functions: dict[str, Function] = {
        "nearest": lambda x: interpolate(x, scale_factor=1.5),
        "linear": lambda x: interpolate(x, size=x.shape[2] + 5, mode="linear"),
        "volume": lambda x: interpolate(x[:, :, None, None], size=(2, 3, x.shape[2] + 1), mode="trilinear"),
        "nearest volume": lambda x: interpolate(x[:, :, None, None], size=(2, 3, x.shape[2] + 1)),
    }
    length = (({2: torch.export.Dim("n", min=3, max=99)},),)
    compare(functions, torch.randn(2, 2, 8), dynamic=length, others=[[torch.randn(2, 2, 5)]], tolerance=2e-5)


def test_refusals() -> None:
    image = torch.randn(1, 2, 8, 10)
    third = partial(interpolate, scale_factor=4 / 3)
    assert "give the size of the result" in refusal(third, image, dynamic=SIDES)
    smooth = partial(interpolate, scale_factor=2.0, mode="bilinear")
    assert "at fixed sizes only; cast the image" in refusal(smooth, image.to(torch.uint8), dynamic=SIDES)
