# SPDX-License-Identifier: Apache-2.0
"""Attention in PyTorch's core operators, in the memory layout that the exported program has seen.

PyTorch's own decomposition returns another layout than the operator. A later view, as in GPT-2, then fails. Layers of
``torch.nn`` without gradients are one operator each (PyTorch's fast path), which PyTorch does not decompose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

aten = torch.ops.aten


def attention_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by PyTorch's overloads."""
    return {
        aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
        aten._native_multi_head_attention.default: _multi_head,
        aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    }


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


_OF_PAIRS, _OF_KEYS = 0, 1
"""Kinds of masks: [queries, keys], and [batch, keys]. Others are [batch, heads, queries, keys]."""


def _multi_head(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:
    """Return attention of several heads with its projections. Inputs are [batch, length, width]. True is masked."""
    if query is key and key is value:
        projected = F.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        weights = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3))
        projected = tuple(F.linear(x, weight, bias) for x, weight, bias in weights)
    queries, keys, values = (
        x.unflatten(-1, (num_head, embed_dim // num_head)).transpose(1, 2) for x in projected
    )
    hidden = None if mask is None else _broadcast(mask.to(torch.bool), mask_type)
    if need_weights:
        scores = (queries * (embed_dim // num_head) ** -0.5) @ keys.transpose(-1, -2)
        scores = scores if hidden is None else scores.masked_fill(hidden, float("-inf"))
        attention = scores.softmax(-1)
        mixed = attention @ values
        shown = attention.mean(1) if average_attn_weights else attention
    else:
        seen = None if hidden is None else hidden.logical_not()
        mixed, shown = F.scaled_dot_product_attention(queries, keys, values, seen), query.new_empty(0)
    return F.linear(mixed.transpose(1, 2).flatten(-2), proj_weight, proj_bias), shown


def _broadcast(mask: Any, kind: int | None) -> Any:
    """Return a mask that broadcasts to [batch, heads, queries, keys]."""
    if kind == _OF_KEYS:
        return mask[:, None, None, :]
    return mask[None, None] if kind == _OF_PAIRS and mask.dim() == 2 else mask


def _encoder_layer(
    src: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """Return a layer of ``torch.nn.TransformerEncoder``: attention and two linear layers, with norms and residuals."""

    def attended(x: Any) -> Any:
        projections = qkv_weight, qkv_bias, proj_weight, proj_bias
        return _multi_head(x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type)[0]

    def widened(x: Any) -> Any:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)

    def first(x: Any) -> Any:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: Any) -> Any:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        middle = src + attended(first(src))
        return middle + widened(second(middle))
    middle = first(src + attended(src))
    return second(middle + widened(middle))


def _hint(stride: Any) -> Any:
    """Return a stride, or that of the example inputs if it is symbolic. The order of strides is the same for all."""
    return stride if isinstance(stride, int) else stride.node.hint
