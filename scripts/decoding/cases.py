# SPDX-License-Identifier: Apache-2.0
"""Small decoders of transformers with random weights, whose steps are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from cached_step import CachedStep, cache_argument
from families.language import configured
from families.spec import PAIR
from models.spec import _vary
from torch import nn

ENCODED = 12
"""Positions of an encoder's output."""

_HEADS: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 16, "initializer_range": 0.1}
_EXPERTS: dict[str, Any] = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "experts_implementation": "batched_mm",
}
_GEMMA: dict[str, Any] = {"query_pre_attn_scalar": 16, "sliding_window": 16}
_T5: dict[str, Any] = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_decoder_layers": 2}
_WHISPER: dict[str, Any] = {**PAIR, "max_target_positions": 128, "init_std": 0.1}


@dataclass(frozen=True)
class Decoder:
    """A decoder: its name, and a function that makes its model of a type.

    ``encoded`` says whether the step takes an encoder's output [1, 12, 64].
    """

    name: str
    build: Callable[[torch.dtype], nn.Module]
    encoded: bool = False

    def step(self, dtype: torch.dtype, length: int, seed: int = 0) -> CachedStep:
        """Return the step with caches of ``length`` tokens. It returns the scores of all its positions."""
        torch.manual_seed(seed)
        with torch.no_grad():
            model = self.build(dtype).eval().requires_grad_(False)
            _vary(model)
        if not self.encoded:
            return CachedStep(model, length, scores=0)
        shapes = [((4, 16), (4, 16))] * 2
        return CachedStep(model, length, scores=0, more=("encoder_hidden_states",), shapes=shapes)


class _Decoding(nn.Module):
    """The decoder of a pair, called as a causal model is. Keys of the encoder's output are computed at each step."""

    def __init__(self, pair: Any):
        super().__init__()
        self.pair, self.dtype = pair, pair.dtype
        self.argument = cache_argument(pair)

    def forward(
        self,
        input_ids: torch.Tensor,
        past_key_values: Any,
        encoder_hidden_states: torch.Tensor,
        **_: Any,
    ) -> Any:
        """Return an object whose ``logits`` are the scores."""
        from transformers import DynamicCache, EncoderDecoderCache
        from transformers.modeling_outputs import BaseModelOutput

        cache = EncoderDecoderCache(past_key_values, DynamicCache())
        encoded = BaseModelOutput(last_hidden_state=encoder_hidden_states)
        result = self.pair(
            decoder_input_ids=input_ids, encoder_outputs=encoded, use_cache=True, **{self.argument: cache}
        )
        return SimpleNamespace(logits=result.logits)


def _causal(kind: str, **options: Any) -> Decoder:
    def build(dtype: torch.dtype) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_config(configured(kind, {**_HEADS, **options}), dtype=dtype)

    return Decoder(kind, build)


def _pair(kind: str, auto: str, options: dict[str, Any]) -> Decoder:
    def build(dtype: torch.dtype) -> Any:
        import transformers

        config = configured(kind, {**options, "decoder_start_token_id": 1})
        return _Decoding(getattr(transformers, auto).from_config(config, dtype=dtype))

    return Decoder(f"{kind} decoder", build, encoded=True)


DECODERS = (
    _causal("llama"),
    _causal("qwen3"),
    _causal("gemma3_text", **_GEMMA),
    _causal("phi"),
    _causal("gpt2"),
    _causal("mixtral", **_EXPERTS),
    _pair("t5", "AutoModelForSeq2SeqLM", _T5),
    _pair("whisper", "AutoModelForSpeechSeq2Seq", _WHISPER),
)
