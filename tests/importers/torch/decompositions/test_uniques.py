# SPDX-License-Identifier: Apache-2.0
"""The different elements and slices of tensors, whose number depends on the data."""

from __future__ import annotations

import pytest
import torch

from tests.importers.torch.programs import compiled, imported, same


def uniques(x: torch.Tensor) -> list[torch.Tensor]:
    return [
        torch.unique(x),
        *torch.unique(x, return_inverse=True, return_counts=True),
        *torch.unique(x, dim=0, return_inverse=True, return_counts=True),
        *torch.unique(x, dim=-1, return_counts=True),
        *torch.unique_consecutive(x, return_inverse=True, return_counts=True),
        *torch.unique_consecutive(x, return_inverse=True, return_counts=True, dim=0),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_uniques(dtype: torch.dtype) -> None:
    first = torch.tensor([[2, 0, 2], [1, 1, 0], [2, 0, 2], [2, 0, 2], [0, 1, 1]])
    run = compiled(imported(uniques, first.to(dtype)))
    for x in (first, first * 0, first.flip(0), 2 - first, torch.arange(15).reshape(5, 3) - 7):
        for got, want in zip(run(x.to(dtype)), uniques(x.to(dtype)), strict=True):
            assert same(got, want, 0.0)


def test_none_of_no_elements() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [*torch.unique(x, return_counts=True), torch.unique(x, dim=0), torch.unique_consecutive(x)]

    x = torch.zeros(0, 3)
    for got, want in zip(compiled(imported(function, x))(x), function(x), strict=True):
        assert same(got, want, 0.0)


def test_a_symbolic_number_of_elements() -> None:
    """Tokens without repetitions: the program is compiled once for all lengths."""

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.unique(x, return_inverse=True, return_counts=True))

    run = compiled(imported(function, torch.arange(6), dynamic=(({0: torch.export.Dim.DYNAMIC},),)))
    for x in (torch.tensor([5, 3, 5, 5]), torch.tensor([1, 1]), torch.arange(9).flip(0) % 4):
        for got, want in zip(run(x), function(x), strict=True):
            assert same(got, want, 0.0)
