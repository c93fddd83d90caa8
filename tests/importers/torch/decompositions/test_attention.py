# SPDX-License-Identifier: Apache-2.0
"""Attention, and views of its result as models take them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.importers.torch.programs import compare, compiled, imported, same


def heads(x: Any) -> Any:
    return x.view(*x.shape[:2], 2, 4).transpose(1, 2)


def test_results_are_viewed() -> None:
    """As in GPT-2: no copy lies between the transposition and the view."""
    compare(
        {
            "causal": lambda x: (
                F.scaled_dot_product_attention(heads(x), heads(x), heads(x), is_causal=True)
                .transpose(1, 2)
                .reshape(2, 5, 8)
                .view(-1, 8)
            ),
            "contiguous": lambda x: F.scaled_dot_product_attention(
                *(heads(x).contiguous() for _ in range(3)), scale=0.3
            ).view(2, 2, 20),
        },
        torch.randn(2, 5, 8),
        tolerance=1e-5,
    )


def test_multi_head_attention() -> None:
    torch.manual_seed(0)
    module, x = torch.nn.MultiheadAttention(8, 2).eval(), torch.randn(5, 3, 8)

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x, x, x, need_weights=False)[0]

    (got,) = compiled(imported(Attention(), x))(x)
    assert same(got, Attention()(x).detach(), 1e-5)


def test_attention_of_symbolic_length_can_be_viewed() -> None:
    """The result has the query's order of strides, so that a view of transposed heads is one."""

    def mixed(x: torch.Tensor) -> torch.Tensor:
        heads = x.reshape(2, -1, 4, 8).transpose(1, 2)
        out = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return out.transpose(1, 2).reshape(2, -1, 32).contiguous().view(-1, 32)

    run = compiled(imported(mixed, torch.randn(2, 7, 32), dynamic=(({1: torch.export.Dim.DYNAMIC},),)))
    for length in (7, 4):
        x = torch.randn(2, length, 32)
        (got,) = run(x)
        assert same(got, mixed(x), 1e-5)
