# SPDX-License-Identifier: Apache-2.0
"""Reductions and running sums: types, no elements, no axes."""

from __future__ import annotations

import math

import torch

from tests.importers.torch.programs import compare


def test_types() -> None:
    compare(
        {
            "any": lambda x, u, b: [
                x.any(1),
                torch.any(u, dim=(0, 1)),
                u.any(0),
                u.any(),
                b.any(1, keepdim=True),
            ],
            "all": lambda x, u, b: [x.all(1), u.all(0), u.all(), b.all(-1)],
            "totals": lambda x, u, b: [u.sum(), u.sum(0), u.prod(1), b.sum(1), x.sum(0, dtype=torch.float64)],
            "of booleans": lambda x, u, b: [b.prod(1, dtype=torch.bool), u.sum(0, dtype=torch.bool)],
            "running": lambda x, u, b: [u.cumsum(0), u.cumprod(-1), b.cumsum(1), x.cumsum(1), x.cumprod(0)],
            "means": lambda x, u, b: [x.mean((0, 1)), u.mean(0, dtype=torch.float32), x.mean()],
            "extremes": lambda x, u, b: [u.amax(0), b.amax(1), *u.max(0), *b.min(1), u.argmax(), x.argmin(1)],
        },
        torch.tensor([[-1.0, 0.0], [0.0, 0.0], [2.5, -0.5]]),
        torch.tensor([[0, 130], [140, 0], [200, 3]], dtype=torch.uint8),
        torch.tensor([[True, False], [False, False], [True, True]]),
    )


def test_no_axes() -> None:
    compare(
        {
            "reduced": lambda x: [
                x.sum(0),
                x.mean(-1),
                x.amax(0),
                x.any(0),
                *x.max(0),
                x.argmax(0),
                x.prod(0),
            ],
            "running": lambda x: [x.cumsum(0), x.softmax(0), x.log_softmax(0), *x.sort(0), *x.topk(1, 0)],
            "spread": lambda x: [x.var(0, correction=0), torch.linalg.vector_norm(x, 3, 0)],
        },
        torch.tensor(-1.75),
    )


def test_no_elements() -> None:
    compare(
        {
            "reduced": lambda x: [x.sum(), x.sum(1), x.mean(1), x.mean(), x.prod(1), x.any(1), x.all(1)],
            "running": lambda x: [x.cumsum(1), x.softmax(1), *x.sort(1)],
            "spread": lambda x: [x.var(1), x.std(1), torch.linalg.vector_norm(x, 2, 1)],
        },
        torch.zeros(3, 0),
    )


def test_norms() -> None:
    orders = (math.inf, -math.inf, 0, 1, 2, 3, 0.5)
    compare(
        {
            f"{order}": lambda x, order=order: [
                torch.linalg.vector_norm(x, order, 1),
                torch.linalg.vector_norm(x, order, (0, 2), keepdim=True),
                torch.linalg.vector_norm(x, order, dtype=torch.float64),
            ]
            for order in orders
        },
        torch.randn(3, 4, 5),
        tolerance=1e-5,
    )


def test_spread_of_one_element() -> None:
    compare(
        {"var": lambda x: [x.var(1), x.std(1), x.var(1, correction=0), *torch.var_mean(x, 1)]},
        torch.randn(3, 1),
    )
