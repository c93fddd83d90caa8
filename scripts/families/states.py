# SPDX-License-Identifier: Apache-2.0
"""State-space models, linear attention, PyTorch's own recurrent layers and its transformer layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .language import from_auto
from .spec import Architecture, Tensors, ids

_HEADS: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 16}
_MAMBA2: dict[str, Any] = {
    "num_heads": 8,
    "head_dim": 16,
    "state_size": 8,
    "n_groups": 2,
    "chunk_size": 4,
    "expand": 2,
}


def _language(kind: str, symbolic: str = "", **options: Any) -> Architecture:
    build = from_auto("AutoModelForCausalLM", kind, ("input_ids",), options, use_cache=False)
    axes = ((1,),) if symbolic else ()
    return Architecture(
        kind, "state space", "transformers", build, lambda n: (ids(2, n),), symbolic, axes, (8, 5)
    )


def _recurrent(kind: str, symbolic: str = "", **options: Any) -> Architecture:
    name = "-".join([kind.lower(), *sorted(options)]).replace("_", "-")

    def build() -> Any:
        return Tensors(getattr(nn, kind)(8, 16, **{"batch_first": True, **options}))

    axes = {"": (), "length": ((1,),), "batch": ((0,),)}[symbolic]
    inputs = (
        (lambda n: (torch.randn(n, 6, 8),)) if symbolic == "batch" else (lambda n: (torch.randn(2, n, 8),))
    )
    sizes = (2, 3) if symbolic == "batch" else (6, 4)
    return Architecture(f"nn-{name}", "recurrent", "torch", build, inputs, symbolic, axes, sizes)


def _transformer() -> Any:
    return nn.Transformer(32, 4, 2, 2, 64, batch_first=True)


def _encoder() -> Any:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True), 2)


ARCHITECTURES = (
    _language("mamba", "length", state_size=4, conv_kernel=3, expand=2),
    _language("falcon_mamba", state_size=4, conv_kernel=3, expand=2),
    _language("mamba2", **_MAMBA2),
    _language("recurrent_gemma", lru_width=64, attention_window_size=8, **_HEADS),
    _language("rwkv", attention_hidden_size=64, context_length=16),
    _language(
        "jamba",
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        num_experts=4,
        mamba_d_state=4,
        mamba_d_conv=3,
        use_mamba_kernels=False,
        **_HEADS,
    ),
    _language(
        "bamba",
        attn_layer_indices=[1],
        mamba_n_heads=8,
        mamba_d_head=16,
        mamba_d_state=8,
        mamba_chunk_size=4,
        **_HEADS,
    ),
    _language(
        "falcon_h1",
        mamba_d_ssm=64,
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_d_state=8,
        mamba_chunk_size=4,
        mamba_n_groups=1,
        **_HEADS,
    ),
    _language(
        "qwen3_next",
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        layer_types=["linear_attention", "full_attention"],
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        **_HEADS,
    ),
    _recurrent("LSTM", "batch"),
    _recurrent("LSTM", num_layers=2, bidirectional=True),
    _recurrent("LSTM", proj_size=4),
    _recurrent("GRU", "batch"),
    _recurrent("GRU", num_layers=2, bidirectional=True),
    _recurrent("RNN", "batch"),
    _recurrent("RNN", nonlinearity="relu"),
    Architecture(
        "nn-transformer",
        "language",
        "torch",
        _transformer,
        lambda n: (torch.randn(n, 7, 32), torch.randn(n, 5, 32)),
        "batch",
        ((0,), (0,)),
    ),
    Architecture(
        "nn-transformer-encoder",
        "language",
        "torch",
        _encoder,
        lambda n: (torch.randn(2, n, 32),),
        "length",
        ((1,),),
        (7, 5),
    ),
)
