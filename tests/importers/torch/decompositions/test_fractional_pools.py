# SPDX-License-Identifier: Apache-2.0
"""Fractional maximum pools with given samples, against PyTorch."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.importers.torch.programs import compare, refusal

F: Any = torch.nn.functional


def test_two_axes() -> None:
    x = torch.randn(2, 3, 11, 13)
    x[0, 0, 3, 4:6] = math.nan
    compare(
        {
            "indices": lambda x, s: F.fractional_max_pool2d(
                x, (3, 2), output_size=(5, 4), return_indices=True, _random_samples=s
            ),
            "one image": lambda x, s: F.fractional_max_pool2d(
                x[0], 2, output_ratio=(0.5, 0.5), _random_samples=s[:1]
            ),
        },
        x,
        torch.rand(2, 3, 2),
    )


def test_three_axes() -> None:
    compare(
        {
            "indices": lambda x, s: F.fractional_max_pool3d(
                x, 2, output_size=(3, 1, 4), return_indices=True, _random_samples=s
            ),
            "no image": lambda x, s: F.fractional_max_pool3d(
                x[:0], 2, output_size=(3, 1, 4), _random_samples=s[:0]
            ),
        },
        torch.randn(2, 3, 7, 8, 9),
        torch.rand(2, 3, 3),
    )


def test_drawn_samples_are_refused() -> None:
    text = refusal(lambda x: F.fractional_max_pool2d(x, 2, output_size=(3, 3)), torch.randn(1, 1, 8, 8))
    assert "rand" in text and "draws random numbers" in text
