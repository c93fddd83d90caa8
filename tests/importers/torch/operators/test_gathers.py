# SPDX-License-Identifier: Apache-2.0
"""Reads at computed indices, sorts and searches."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from tests.importers.torch.programs import compare, compiled, imported


def test_reads() -> None:
    compare(
        {
            "rows": lambda x, i: [F.embedding(i, x), x.index_select(-1, i), x.index_select(0, i)],
            "gathered": lambda x, i: [
                x.gather(1, i.expand(2, 3)),
                x.gather(-1, i[:2].unsqueeze(1)),
                i.gather(0, i),
            ],
            "taken": lambda x, i: [x.take(i), torch.take_along_dim(x, i.expand(4, 3), 1)],
            "sorted": lambda x, i: [
                *x.sort(1, descending=True),
                *x.sort(dim=0, stable=True),
                x.argsort(-1),
                *i.sort(),
            ],
            "greatest": lambda x, i: [*x.topk(2, 0), *x.topk(3, -1, largest=False)],
            "searched": lambda x, i: [
                torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0]), right=True),
                torch.bucketize(i, torch.tensor([1, 2])),
                torch.isin(i, torch.tensor([0, 2])),
            ],
        },
        torch.randn(4, 3),
        torch.tensor([2, 0, 1]),
    )


def test_indices_in_front_of_a_tensor_count_from_its_end() -> None:
    """PyTorch fails at them. Here nothing in front of the tensor is read."""
    x, i = torch.randn(4, 3), torch.tensor([-1, -2, 1])
    mod = imported(
        lambda x, i: [F.embedding(i, x), x.index_select(0, i), x.gather(0, i.expand(2, 3))], x, i.abs() - 1
    )
    rows, selected, gathered = compiled(mod)(x, i)
    assert torch.equal(torch.from_numpy(rows.copy()), x[i]) and (selected == rows).all()
    assert torch.equal(torch.from_numpy(gathered.copy()), x.gather(0, (i % 4).expand(2, 3)))


def test_masks() -> None:
    x = torch.randn(4, 3)
    mod = imported(
        lambda x: [x[x > 0], x[x[:, 0] > 0], torch.masked_select(x, x[:1] > 0), torch.nonzero(x > 0)], x
    )
    run = compiled(mod)
    for given in (x, -x, torch.ones(4, 3)):
        wanted = (
            given[given > 0],
            given[given[:, 0] > 0],
            given.masked_select(given[:1] > 0),
            (given > 0).nonzero(),
        )
        for got, want in zip(run(given), wanted, strict=True):
            assert torch.equal(torch.from_numpy(got.copy()), want)


def test_positions_in_a_tensor_of_no_axis() -> None:
    run = compiled(imported(lambda x: [torch.nonzero(x), torch.argwhere(x > 2)], torch.tensor(3.0)))
    for number in (3.0, 0.0, 1.0):
        x = torch.tensor(number)
        for got, want in zip(run(x), (torch.nonzero(x), torch.argwhere(x > 2)), strict=True):
            assert got.dtype == "int64" and got.shape == tuple(want.shape)


def test_sorted_bytes() -> None:
    x = torch.tensor([[200, 3, 3], [0, 255, 7]], dtype=torch.uint8)
    compare({"sorted": lambda x: [*x.sort(1), *x.topk(2), *(x > 5).sort(dim=1, stable=True)]}, x)


def test_not_a_number_is_behind_all_numbers() -> None:
    nan, inf = math.nan, math.inf
    x = torch.tensor(
        [[nan, 2.0, nan, -1.0, inf, 0.5, -nan, -inf], [3.0, nan, -0.0, 0.0, 1.0, -2.0, nan, nan]]
    )
    compare(
        {
            str(dtype): lambda x, dtype=dtype: [
                *x.to(dtype).sort(dim=1, stable=True),
                *x.to(dtype).sort(dim=1, descending=True, stable=True),
                x.to(dtype).argsort(dim=1, stable=True),
                x.to(dtype).topk(5).values,
                x.to(dtype).topk(4, largest=False).values,
                *x.to(dtype).nanmedian(1),
            ]
            for dtype in (torch.float32, torch.float64, torch.float16)
        },
        x,
    )


def test_sorted_infinities() -> None:
    x = torch.tensor([[math.inf, -1.0, -math.inf, 3.0, 3.0]])
    compare({"sorted": lambda x: [*x.sort(dim=1, stable=True), *x.topk(2)]}, x)
