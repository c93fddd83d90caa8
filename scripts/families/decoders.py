# SPDX-License-Identifier: Apache-2.0
"""Decoders of language: prefill, single steps with a cache, and mixtures of experts, by the transformers package."""

from __future__ import annotations

from typing import Any

import torch

from .language import configured, from_auto
from .spec import Architecture, Cached, ids

_HEADS: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 16}
_EXPERTS: dict[str, Any] = {
    **_HEADS,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
}


def _prefill(
    kind: str, symbolic: str = "", family: str = "decoders", suffix: str = "", **options: Any
) -> Architecture:
    build = from_auto("AutoModelForCausalLM", kind, ("input_ids",), options, use_cache=False)
    axes = {"": (), "length": ((1,),), "batch": ((0,),)}[symbolic]
    sizes = (2, 3) if symbolic == "batch" else (10, 7)
    inputs = (lambda n: (ids(n, 10),)) if symbolic == "batch" else (lambda n: (ids(2, n),))
    return Architecture(kind + suffix, family, "transformers", build, inputs, symbolic, axes, sizes)


def _batched(kind: str, symbolic: str = "", **options: Any) -> Architecture:
    """Return a mixture of experts whose products PyTorch's ONNX exporter takes."""
    more = {"experts_implementation": "batched_mm", **options}
    return _prefill(kind, symbolic, "mixture of experts", "-batched", **more)


def _step(kind: str, heads: int = 2, **options: Any) -> Architecture:
    """Return one new token and a cache of two layers [batch, heads, former tokens, 16]."""

    def build() -> Any:
        from transformers import AutoModelForCausalLM

        return Cached(AutoModelForCausalLM.from_config(configured(kind, options)), 2)

    def inputs(n: int) -> tuple[Any, ...]:
        return (ids(2, 1), *(torch.randn(2, heads, n, 16) for _ in range(4)))

    axes = ((), (2,), (2,), (2,), (2,))
    return Architecture(f"{kind}-step", "caches", "transformers", build, inputs, "cache", axes, (9, 5))


_GEMMA: dict[str, Any] = {**_HEADS, "query_pre_attn_scalar": 16, "sliding_window": 4}
_LATENT: dict[str, Any] = {
    **_EXPERTS,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "head_dim": 8,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}

ARCHITECTURES = (
    _prefill("gpt2", "length", n_positions=128),
    _prefill("gpt_neo", attention_types=[[["global", "local"], 1]], num_layers=2, num_heads=4, window_size=4),
    _prefill("gptj", n_embd=64, n_layer=2, n_head=4, rotary_dim=8, n_positions=128),
    _prefill("gpt_neox", "length"),
    _prefill("opt", "length", ffn_dim=128, word_embed_proj_dim=64),
    _prefill("bloom", n_layer=2, n_head=4),
    _prefill("llama", "length", **_HEADS),
    _prefill("mistral", sliding_window=4, **_HEADS),
    _prefill("qwen2", "batch", **_HEADS),
    _prefill("qwen3", **_HEADS),
    _prefill("gemma", **_HEADS),
    _prefill("gemma2", **_GEMMA),
    _prefill("gemma3_text", "length", **_GEMMA),
    _prefill("phi", **_HEADS),
    _prefill("phi3", **_HEADS),
    _prefill("falcon", alibi=False, new_decoder_architecture=False),
    _prefill("mpt", d_model=64, n_layers=2, n_heads=4, max_seq_len=64),
    _prefill("stablelm", **_HEADS),
    _prefill("starcoder2", **_HEADS),
    _prefill("olmo2", **_HEADS),
    _prefill("cohere", **_HEADS),
    _prefill("granite", **_HEADS),
    _prefill("smollm3", **_HEADS),
    _prefill("glm", **_HEADS),
    _prefill("nemotron", **_HEADS),
    _prefill("codegen", n_embd=64, n_layer=2, n_head=4, rotary_dim=8, n_positions=128, n_ctx=128),
    _prefill("biogpt"),
    _prefill("xglm", d_model=64, num_layers=2, attention_heads=4, ffn_dim=128),
    _prefill("ctrl", n_embd=64, n_layer=2, n_head=4, dff=128, n_positions=128),
    _prefill("persimmon"),
    _prefill("ministral", sliding_window=4, **_HEADS),
    _step("gpt2", heads=4, n_positions=128),
    _step("llama", **_HEADS),
    _step("mistral", **_HEADS),
    _step("qwen3", **_HEADS),
    _step("gemma", **_HEADS),
    _step("phi3", **_HEADS),
    _step("gpt_neox", heads=4),
    _step("opt", heads=4, ffn_dim=128, word_embed_proj_dim=64),
    _prefill("mixtral", "length", "mixture of experts", **_EXPERTS),
    _prefill("qwen2_moe", family="mixture of experts", **_EXPERTS),
    _prefill("qwen3_moe", family="mixture of experts", **_EXPERTS),
    _prefill("olmoe", family="mixture of experts", **_EXPERTS),
    _prefill("granitemoe", family="mixture of experts", **_EXPERTS),
    _prefill("phimoe", family="mixture of experts", **_EXPERTS),
    _prefill("gpt_oss", family="mixture of experts", sliding_window=4, **_EXPERTS),
    _prefill("deepseek_v3", family="mixture of experts", **_LATENT),
    _batched("mixtral", "length", **_EXPERTS),
    _batched("qwen3_moe", "batch", **_EXPERTS),
    _batched("gpt_oss", sliding_window=4, **_EXPERTS),
    _batched("deepseek_v3", **_LATENT),
)
