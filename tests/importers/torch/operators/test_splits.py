# SPDX-License-Identifier: Apache-2.0
"""Splits of symbolic axes, and of sizes that a tensor has, are PyTorch's."""

from __future__ import annotations

from typing import Any

import torch

import tvm_stitch
from tests.importers.torch.programs import Called, compare

N = torch.export.Dim("n", min=4, max=99)


def test_symbolic_sizes() -> None:
    others = [[torch.randn(rows, 4)] for rows in (4, 9)]
    functions = {
        "rest": lambda x: x.split([2, x.shape[0] - 2]),
        "known": lambda x: x.split(3, 1),
        "one": lambda x: x.split(4, 1),
    }
    compare(functions, torch.randn(6, 4), dynamic=(({0: N},),), others=others)


def test_halves_of_an_even_axis() -> None:
    model = Called(lambda x: [each * 2 for each in x.chunk(2)])
    even = {0: 2 * torch.export.Dim("half", min=2, max=60)}
    fast = tvm_stitch.compile(model, "llvm", example_inputs=(torch.randn(8, 4),), dynamic_shapes=((even,),))
    for rows in (4, 10):
        x = torch.randn(rows, 4)
        assert all(map(torch.equal, fast(x), model(x)))


def test_sizes_that_a_tensor_has() -> None:
    def experts(x: torch.Tensor, weights: torch.Tensor, choices: torch.Tensor) -> Any:
        parts = x.split(choices.sum(0).tolist())
        return torch.cat([part @ weights[at] for at, part in enumerate(parts)])

    choices = torch.tensor([[1, 0, 1], [1, 1, 1], [0, 1, 0]])
    given = torch.randn(6, 4), torch.randn(3, 4, 4), choices
    compare({"experts": experts}, *given, others=[(*given[:2], choices.roll(1, 1))])
