# SPDX-License-Identifier: Apache-2.0
"""Transformers of language and speech, by the transformers package, with random weights.

Each is wrapped so that it takes tensors and returns only the last hidden state: other results of a model differ from
version to version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .spec import Model

ATTENTION = "sdpa"


def _wrapped(model: Any) -> Any:
    """Wrap ``model``: take its first argument, and return its last hidden state."""
    import torch

    class LastHidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x, return_dict=True).last_hidden_state

    return LastHidden()


def _tokens(vocabulary: int, batch: int, length: int) -> list[Any]:
    import torch

    return [torch.randint(0, vocabulary, (batch, length))]


def _bert(sequence: int) -> Callable[[str, int], tuple[Any, list[Any]]]:
    def build(size: str, batch: int) -> tuple[Any, list[Any]]:
        from transformers import BertConfig, BertModel

        small = {
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "intermediate_size": 256,
            "vocab_size": 1000,
        }
        config = BertConfig(attn_implementation=ATTENTION, **(small if size == "small" else {}))
        model = BertModel(config, add_pooling_layer=False)
        length = sequence if size == "full" else min(sequence, 32)
        return _wrapped(model), _tokens(config.vocab_size, batch, length)

    return build


def _gpt2(size: str, batch: int) -> tuple[Any, list[Any]]:
    from transformers import GPT2Config, GPT2Model

    small = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 1000}
    config = GPT2Config(attn_implementation=ATTENTION, use_cache=False, **(small if size == "small" else {}))
    length = 128 if size == "full" else 16
    return _wrapped(GPT2Model(config)), _tokens(config.vocab_size, batch, length)


def _t5(size: str, batch: int) -> tuple[Any, list[Any]]:
    from transformers import T5Config, T5EncoderModel

    full = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
    small = {"d_model": 64, "d_kv": 16, "d_ff": 256, "num_layers": 2, "num_heads": 4, "vocab_size": 1000}
    config = T5Config(attn_implementation=ATTENTION, use_cache=False, **(full if size == "full" else small))
    length = 128 if size == "full" else 16
    return _wrapped(T5EncoderModel(config)), _tokens(config.vocab_size, batch, length)


def _whisper(size: str, batch: int) -> tuple[Any, list[Any]]:
    import torch
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    small = {
        "d_model": 64,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 256,
        "max_source_positions": 50,
    }
    full = {"d_model": 512, "encoder_layers": 6, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048}
    config = WhisperConfig(attn_implementation=ATTENTION, **(full if size == "full" else small))
    frames = 2 * config.max_source_positions
    return _wrapped(WhisperEncoder(config)), [torch.randn(batch, config.num_mel_bins, frames)]


_PACKAGES = ("transformers",)

MODELS = (
    Model("bert", _bert(128), _PACKAGES, "BERT-base, sequence 128"),
    Model("bert-16", _bert(16), _PACKAGES, "BERT-base, sequence 16"),
    Model(
        "gpt2",
        _gpt2,
        _PACKAGES,
        "GPT-2 124M without its head, sequence 128",
    ),
    Model("t5-encoder", _t5, _PACKAGES, "T5-base's encoder, sequence 128"),
    Model("whisper-encoder", _whisper, _PACKAGES, "Whisper-base's encoder, 30 s of sound"),
)
