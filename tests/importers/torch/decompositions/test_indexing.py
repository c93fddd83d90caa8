# SPDX-License-Identifier: Apache-2.0
"""Masked writes, scatters that reduce, and bags of embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.importers.torch.programs import compare, refusal


def written(x: Any, at: Any, value: Any) -> Any:
    x = x.clone()
    x[at] = value
    return x


def test_masked_writes() -> None:
    x = torch.randn(4, 3)
    compare(
        {
            "numbers": lambda x, s: [written(x, x > 0, 0.0), written(x, x[:, 0] > 0, -1.0)],
            "rows": lambda x, s: [
                written(x, x[:, 0] > 0, s[0, :3]),
                written(x, (slice(None), s[0, :3] > 0), 2.0),
            ],
            "by columns": lambda x, s: x.masked_fill(x > 0, 3),
            "scattered": lambda x, s: [x.masked_scatter(x > 0, s), x.masked_scatter(x[:1] > 0, s)],
        },
        x,
        torch.randn(4, 5),
    )


def test_scatters() -> None:
    index = torch.tensor([[0, 1, 0], [2, 0, 2]])
    compare(
        {
            name: lambda x, s, name=name: [
                x.scatter_reduce(0, index, s, name),
                x.scatter_reduce(1, index, s, name, include_self=False),
            ]
            for name in ("sum", "prod", "mean", "amax", "amin")
        }
        | {
            "reduce": lambda x, s: [
                x.scatter(0, index, s, reduce="add"),
                x.scatter(1, index, s, reduce="multiply"),
                x.scatter(0, index, 2.0, reduce="multiply"),
            ],
            "slices": lambda x, s: [
                x.index_reduce(0, index[:, 0], s, "amax"),
                x.index_reduce(0, index[:, 0], s, "mean", include_self=False),
            ],
            "put": lambda x, s: [x.put(index, s), x.put(index[0, :2], s[0, :2], accumulate=True)],
        },
        torch.randn(4, 3),
        torch.randn(2, 3),
    )


def test_bags() -> None:
    i, begins = torch.tensor([1, 2, 4, 5, 4, 3, 2, 0]), torch.tensor([0, 3, 3, 6])
    compare(
        {
            mode: lambda w, i, begins, mode=mode: [
                F.embedding_bag(i, w, begins, mode=mode),
                F.embedding_bag(i.reshape(2, 4), w, mode=mode),
                F.embedding_bag(i, w, begins, mode=mode, padding_idx=4),
            ]
            for mode in ("sum", "mean", "max")
        }
        | {
            "weighted": lambda w, i, begins: F.embedding_bag(
                i, w, begins, mode="sum", per_sample_weights=w[:8, 0]
            ),
        },
        torch.randn(9, 3),
        i,
        begins,
    )


def test_writes_to_strided_views_and_repeated_indices() -> None:
    compare(
        {
            "strided": lambda x, n: [
                torch.as_strided_scatter(x, torch.zeros(2, 2), (2, 2), (5, 2), 1),
                torch.as_strided_scatter(x, torch.ones(3), (3,), (4,)),
            ],
            "repeated": lambda x, n: [
                torch.repeat_interleave(n, output_size=6),
                x.repeat_interleave(n[:3], 0, output_size=3),
                torch.repeat_interleave(n),
                x.repeat_interleave(n[:3], 0) * 2 + 1,
                x.repeat_interleave(n.int(), 1).sum(0),
                torch.repeat_interleave(n[:0]),
            ],
        },
        torch.randn(3, 4),
        torch.tensor([2, 0, 1, 3]),
    )


def test_gradients_of_maxima() -> None:
    def function(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        _, at = torch.ops.aten.max_pool2d_with_indices(x, [3, 2], [1, 2], [1, 0])
        backward = torch.ops.aten.max_pool2d_with_indices_backward.default
        return backward(gradient, x, [3, 2], [1, 2], [1, 0], [1, 1], False, at)

    compare({"pooled": function}, torch.randn(2, 3, 5, 6), torch.randn(2, 3, 5, 3))


def test_rows_of_an_embedding_are_scaled_down_to_a_norm() -> None:
    compare(
        {
            "rows": lambda w, i: torch.nn.functional.embedding(i, w.clone(), max_norm=1.0),
            "sums": lambda w, i: torch.nn.functional.embedding(i, w.clone(), max_norm=2.0, norm_type=1.0),
        },
        torch.randn(7, 4),
        torch.tensor([[1, 2], [2, 6]]),
    )


def test_computed_positions_of_parts_are_refused() -> None:
    text = refusal(torch.tensor_split, torch.randn(6, 2), torch.tensor([1, 3]))
    assert "sym_storage_offset" in text and "pass the positions as Python integers" in text
