# SPDX-License-Identifier: Apache-2.0
"""Histograms, reductions of segments, and positions of a fixed number of elements."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tests.importers.torch.programs import compare


def test_histograms() -> None:
    edges = torch.tensor([-1.0, -0.5, 0.25, 2.0])
    compare(
        {
            "edges": lambda x, w: [
                *torch.histogram(x, edges),
                torch.histogram(x, edges, weight=w, density=True).hist,
            ],
            "number of bins": lambda x, w: [
                *torch.histogram(x, 5),
                *torch.histogram(x * 0, 2),
                *torch.histogram(x, 2, range=(0.25, 0.25)),
                *torch.histogram(x, 4, range=(-1.0, 1.0), weight=w),
            ],
            "bounds of the data": lambda x, w: [torch.histc(x, 7), torch.histc(x * 0, 3)],
            "rows": lambda x, w: [*torch.histogramdd(x[:, :2], [edges, edges * 2], weight=w[:, 0]).hist],
        },
        torch.tensor([[-1.0, 0.3, 1.9], [2.0, 0.25, -3.0], [0.7, -0.5, -0.9], [0.1, 2.5, -0.51]]),
        torch.rand(4, 3),
    )


def _reduced(kind: str, x: Any, lengths: Any, rows: Any) -> list[Any]:
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    reduced = partial(torch.segment_reduce, x, kind, axis=0, unsafe=True)
    return [
        reduced(lengths=lengths),
        reduced(offsets=offsets),
        reduced(lengths=lengths, initial=0.5),
        torch.segment_reduce(x, kind, lengths=rows, axis=1, unsafe=True),
    ]


def test_segments() -> None:
    compare(
        {kind: partial(_reduced, kind) for kind in ("sum", "mean", "max", "min", "prod")},
        torch.randn(6, 3),
        torch.tensor([2, 0, 3, 1]),
        torch.tensor([[1, 2], [0, 3], [3, 0], [2, 1], [1, 2], [2, 1]]),
    )


def test_positions() -> None:
    compare(
        {
            str(size): lambda x, size=size: [
                torch.nonzero_static(x, size=size),
                torch.nonzero_static(x[:, 0], size=size, fill_value=-7),
            ]
            for size in (0, 2, 5, 20)
        },
        torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0], [0.0, 0.0, 5.0]]),
    )
