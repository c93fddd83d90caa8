# SPDX-License-Identifier: Apache-2.0
"""Incomplete gamma functions against PyTorch in float64, with large parameters and at all limits."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch

from tests.importers.torch.programs import compiled, imported


def test_both_integrals() -> None:
    a = torch.tensor([0.01, 0.5, 1, 2, 7.9, 8, 20, 100, 1000]).repeat_interleave(8)
    x = a * torch.tensor([0.01, 0.3, 0.9, 0.99, 1.0, 1.1, 2, 10]).repeat(9)
    limits = list(itertools.product([0.0, 1.0, -1.0, math.inf, math.nan], repeat=2))
    a = torch.cat([a, torch.tensor([each[0] for each in limits])])
    x = torch.cat([x, torch.tensor([each[1] for each in limits])])
    run = compiled(imported(lambda a, x: [torch.igamma(a, x), torch.igammac(a, x)], a, x))
    for got, function in zip(run(a, x), (torch.igamma, torch.igammac), strict=True):
        np.testing.assert_allclose(got, function(a.double(), x.double()).numpy(), rtol=2e-5, atol=2e-6)
