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
            "counts of rows": lambda x, w: [
                *torch.histogramdd(x[:, :2], [3, 4])[1],
                torch.histogramdd(x[:, :2], [3, 4]).hist,
                torch.histogramdd(x, [2, 3, 2], range=[-1.0, 1, -2, 1.5, 0, 2], density=True).hist,
            ],
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
                torch.nonzero_static(x[0, 1], size=size),
            ]
            for size in (0, 2, 5, 20)
        },
        torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0], [0.0, 0.0, 5.0]]),
    )


def test_counts_of_numbers() -> None:
    compare(
        {
            "counts": lambda n, w: [torch.bincount(n), torch.bincount(n, minlength=9), torch.bincount(n[:0])],
            "bytes": lambda n, w: [torch.bincount(n.to(torch.uint8), minlength=2)],
            "weights": lambda n, w: [torch.bincount(n, w), torch.bincount(n, w.half(), minlength=6)],
            "none": lambda n, w: [torch.bincount(n[:0], w[:0], minlength=3)],
        },
        torch.tensor([2, 0, 3, 3]),
        torch.rand(4),
    )


def test_hashes() -> None:
    compare(
        {
            "floats": lambda x: [
                torch.hash_tensor(x),
                torch.hash_tensor(x.half(), 1),
                torch.hash_tensor(x[0, 0, 0]),
            ],
            "axes": lambda x: [torch.hash_tensor(x, (0, 2), keepdim=True)],
            "integers": lambda x: [
                torch.hash_tensor((x * 9).to(torch.int8), -1),
                torch.hash_tensor(x > 0, 0),
            ],
        },
        torch.randn(3, 5, 2),
    )
