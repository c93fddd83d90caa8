# SPDX-License-Identifier: Apache-2.0
"""Mantissas with exponents and neighbouring numbers, of normal and denormal numbers."""

from __future__ import annotations

import math

import torch

from tests.importers.torch.programs import compare

EXTREMES = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    3.7,
    65504.0,
    6e-8,
    1e-45,
    -1e-40,
    3.4e38,
    math.inf,
    -math.inf,
    math.nan,
)


def test_mantissas_and_exponents() -> None:
    x = torch.tensor(EXTREMES, dtype=torch.float64)
    numbers = torch.cat([x, torch.randn(20, dtype=torch.float64) * 1e3, torch.tensor([5e-324, 1e300])])
    compare(
        {
            str(d): lambda x, d=d: list(torch.frexp(x.to(d)))
            for d in (torch.float32, torch.float64, torch.float16)
        },
        numbers,
        tolerance=0.0,
    )


def test_neighbours() -> None:
    x = torch.tensor(EXTREMES)
    compare(
        {
            "towards all": lambda x: [
                torch.nextafter(x[:, None], x),
                torch.nextafter(x[:, None], x).signbit(),
            ],
            "float64": lambda x: torch.nextafter(x.double(), x.double().flip(0)),
        },
        x,
        tolerance=0.0,
    )
