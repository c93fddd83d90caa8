# SPDX-License-Identifier: Apache-2.0
"""Attention, and views of its result as models take them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import tvm_stitch
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


def run_compiled(module: torch.nn.Module, *given: Any) -> Any:
    """Return what a module returns by ``torch.compile``, of which PyTorch may run no graph."""
    torch._dynamo.reset()
    with torch.no_grad(), warned_as_errors():
        return torch.compile(module, backend=tvm_stitch.torch_backend, options={"cache": False})(*given)


@contextlib.contextmanager
def warned_as_errors() -> Iterator[None]:
    class Raised(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise AssertionError(record.getMessage())

    logger, handler = logging.getLogger("tvm_stitch.front.dynamo"), Raised(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize("masks", ["", "keys", "pairs", "pairs and keys"])
@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}], ids=["after", "before"])
def test_fast_paths_of_encoder_layers(masks: str, options: dict[str, Any]) -> None:
    """Without gradients PyTorch runs a layer as one operator."""
    torch.manual_seed(0)
    module = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options).eval()
    x, keys = (
        torch.randn(3, 5, 16),
        torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 4 + [True]]),
    )
    pairs = torch.ones(5, 5, dtype=torch.bool).triu(1) if "pairs" in masks else None
    given = x, pairs, keys if "keys" in masks else None
    with torch.no_grad():
        found = run_compiled(module.requires_grad_(False), *given)
        assert same(found.numpy(), module(*given), 1e-5)


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("inputs", [1, 2, 3])
def test_fast_path_of_attention_with_weights(inputs: int, average: bool) -> None:
    torch.manual_seed(0)
    inner = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval().requires_grad_(False)
    drawn = [torch.randn(3, 5, 8) for _ in range(inputs)]
    given = {1: drawn * 3, 2: [drawn[0], drawn[-1], drawn[-1]], 3: drawn}[inputs]

    class Attention(torch.nn.Module):
        def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
            return torch.ops.aten._native_multi_head_attention(
                query, key, value, 8, 2, inner.in_proj_weight, inner.in_proj_bias,
                inner.out_proj.weight, inner.out_proj.bias, average_attn_weights=average,
            )  # fmt: skip

    with torch.no_grad():
        wanted = inner(*given, average_attn_weights=average)
        for got, want in zip(compiled(imported(Attention(), *given))(*given), wanted, strict=True):
            assert same(got, want, 1e-5)
