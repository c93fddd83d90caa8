# SPDX-License-Identifier: Apache-2.0
"""Attention in PyTorch's core operators, in the memory layout that the exported program has seen.

PyTorch's own decomposition returns another layout than the operator. A later view, as in GPT-2, then fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def attention_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by PyTorch's overloads."""
    return {aten._scaled_dot_product_flash_attention_for_cpu.default: _attention}


def _attention(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> tuple[Any, Any]:
    """Attention whose result has the query's order of strides, as that of the operator."""
    strides = [_hint(stride) for stride in query.stride()]
    if None in strides:
        from torch._decomp import decomposition_table

        known = decomposition_table[aten._scaled_dot_product_flash_attention_for_cpu.default]
        return known(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    output, weights = aten._scaled_dot_product_attention_math.default(
        query,
        key,
        value,
        attn_mask=attn_mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        dropout_mask=None,
        scale=scale,
        enable_gqa=query.size(1) != key.size(1),
    )
    order = sorted(range(4), key=lambda axis: -strides[axis])
    if order != list(range(4)):
        output = output.permute(order).contiguous().permute([order.index(axis) for axis in range(4)])
    return output, weights


def _hint(stride: Any) -> Any:
    """Return a stride, or that of the example inputs if it is symbolic. The order of strides is the same for all."""
    return stride if isinstance(stride, int) else stride.node.hint
