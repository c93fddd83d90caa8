# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of symbolic sizes, and tensors computed with them, are PyTorch's at several sizes."""

from __future__ import annotations

import torch

from tests.importers.torch.programs import Function, compare

ROWS = (({0: torch.export.Dim("n", min=4, max=99)},),)

FUNCTIONS: dict[str, Function] = {
    "fmod": lambda x: torch.fmod(x, x.shape[0]),
    "remainder": lambda x: x % x.shape[0],
    "rounded down": lambda x: x // x.shape[0],
    "divided": lambda x: torch.div(x * 10, x.shape[0], rounding_mode="floor"),
    "power": lambda x: x * (x.shape[0] ** -0.5),
    "inverse": lambda x: x * (1.0 / x.shape[0]),
    "half": lambda x: x * (x.shape[0] / 2),
    "float": lambda x: x.masked_fill(x > 0, x.shape[0]),
    "greatest": lambda x: torch.nn.functional.pad(x, (0, 0, 0, max(16 - x.shape[0], 0))),
}


def test_they_are_pytorchs() -> None:
    torch.manual_seed(0)
    others = [[torch.randn(rows, 3)] for rows in (5, 13, 20)]
    compare(FUNCTIONS, torch.randn(8, 3), dynamic=ROWS, others=others)
