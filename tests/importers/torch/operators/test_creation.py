# SPDX-License-Identifier: Apache-2.0
"""Tensors without inputs: their types, their numbers, and symbolic sizes."""

from __future__ import annotations

from typing import Any

import torch

from tests.importers.torch.programs import compare, compiled, imported


def test_filled_tensors_and_ranges() -> None:
    compare(
        {
            "filled": lambda x: [torch.full((2,), 3), torch.ones(2, dtype=torch.int64), x.new_full((2,), 5)],
            "like": lambda x: [
                torch.ones_like(x, dtype=torch.bool),
                torch.zeros_like(x),
                torch.full_like(x, 2.5, dtype=torch.float64),
            ],
            "ranges": lambda x: [
                torch.arange(7),
                torch.arange(5, -1, -2),
                torch.arange(0, 1, 0.1),
                torch.arange(2, 9, 3, dtype=torch.float32),
                torch.arange(0),
            ],
            "spaced": lambda x: [torch.linspace(0, 1, 7), torch.linspace(3, -1, 5), torch.logspace(0, 2, 3)],
            "matrices": lambda x: [
                torch.eye(3),
                torch.eye(2, 4, dtype=torch.int64),
                torch.tril_indices(3, 3),
            ],
            "windows": lambda x: [torch.hann_window(8), torch.hamming_window(8)],
            "read": lambda x: x + 1,
        },
        torch.randn(3, 2),
    )


def test_symbolic_sizes() -> None:
    def made(x: Any) -> list[Any]:
        rows = x.shape[0]
        return [
            torch.arange(rows),
            torch.arange(rows, 0, -1),
            torch.zeros(rows, 2),
            torch.ones_like(x),
            x * 2,
        ]

    rows = ({0: torch.export.Dim("rows", min=2, max=9)},)
    run = compiled(imported(lambda *x: made(x[0]), torch.randn(4, 3), dynamic=(rows,)))
    for count in (2, 4, 9):
        x = torch.randn(count, 3)
        for got, want in zip(run(x), made(x), strict=True):
            assert torch.equal(torch.from_numpy(got.copy()), want)
