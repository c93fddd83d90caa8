# SPDX-License-Identifier: Apache-2.0
"""Models of sound and of time series, by the transformers package."""

from __future__ import annotations

from typing import Any

import torch

from .language import configured, from_auto
from .spec import PAIR, Architecture, Tensors, ids

_WAVE: dict[str, Any] = {
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 4, 2),
    "conv_kernel": (10, 8, 3),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}


def _wave(kind: str, symbolic: str = "", **options: Any) -> Architecture:
    """Return a model of a raw wave [batch, samples]."""
    build = from_auto("AutoModel", kind, ("input_values",), {**_WAVE, **options})
    axes = ((0,),) if symbolic else ()
    return Architecture(
        kind, "speech", "transformers", build, lambda n: (torch.randn(n, 1600),), symbolic, axes
    )


def _whisper_encoder() -> Any:
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    return Tensors(WhisperEncoder(configured("whisper", {**PAIR, "max_source_positions": 50})))


def _hifigan() -> Any:
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    config = SpeechT5HifiGanConfig(
        model_in_dim=16, upsample_initial_channel=32, upsample_rates=[4, 4], upsample_kernel_sizes=[8, 8]
    )
    return Tensors(SpeechT5HifiGan(config))


_FORECAST: dict[str, Any] = {
    "prediction_length": 4,
    "context_length": 8,
    "lags_sequence": [1, 2],
    "num_time_features": 1,
    **PAIR,
}


def _forecast(kind: str, **options: Any) -> Architecture:
    names = (
        "past_values",
        "past_time_features",
        "past_observed_mask",
        "future_values",
        "future_time_features",
    )
    build = from_auto("AutoModel", kind, names, {**_FORECAST, **options}, use_cache=False)

    def inputs(n: int) -> tuple[Any, ...]:
        past = 8 + 2
        return (
            torch.rand(n, past) + 0.5,
            torch.randn(n, past, 1),
            torch.ones(n, past),
            torch.rand(n, 4),
            torch.randn(n, 4, 1),
        )

    return Architecture(kind, "time series", "transformers", build, inputs)


ARCHITECTURES = (
    Architecture(
        "whisper-encoder",
        "speech",
        "transformers",
        _whisper_encoder,
        lambda n: (torch.randn(n, 80, 100),),
        "batch",
        ((0,),),
    ),
    Architecture(
        "whisper",
        "speech",
        "transformers",
        from_auto(
            "AutoModel",
            "whisper",
            ("input_features", "decoder_input_ids"),
            {**PAIR, "max_source_positions": 50},
            use_cache=False,
        ),
        lambda n: (torch.randn(2, 80, 100), ids(2, n)),
        "length",
        ((), (1,)),
        (6, 4),
    ),
    _wave("wav2vec2", "batch"),
    _wave("hubert"),
    _wave("wavlm", num_buckets=16, max_bucket_distance=32),
    _wave("sew", squeeze_factor=2),
    _wave("data2vec-audio", conv_pos_kernel_size=5),
    _wave("wav2vec2-conformer", position_embeddings_type="relative"),
    Architecture(
        "speech_to_text",
        "speech",
        "transformers",
        from_auto(
            "AutoModel",
            "speech_to_text",
            ("input_features", "decoder_input_ids"),
            {**PAIR, "conv_channels": 32, "input_feat_per_channel": 16, "max_source_positions": 64},
            use_cache=False,
        ),
        lambda n: (torch.randn(2, 40, 16), ids(2, 6)),
    ),
    Architecture(
        "audio-spectrogram-transformer",
        "speech",
        "transformers",
        from_auto("AutoModel", "audio-spectrogram-transformer", (), {"max_length": 64, "num_mel_bins": 32}),
        lambda n: (torch.randn(2, 64, 32),),
    ),
    Architecture(
        "encodec",
        "speech",
        "transformers",
        from_auto(
            "AutoModel",
            "encodec",
            (),
            {"num_filters": 4, "hidden_size": 16, "upsampling_ratios": [4, 2], "codebook_size": 16},
            results=("audio_codes", "audio_values"),
        ),
        lambda n: (torch.randn(1, 1, 320),),
    ),
    Architecture("hifigan", "speech", "transformers", _hifigan, lambda n: (torch.randn(2, 10, 16),)),
    _forecast("time_series_transformer"),
    _forecast("informer"),
    _forecast("autoformer", moving_average=3, label_length=4),
    Architecture(
        "patchtst",
        "time series",
        "transformers",
        from_auto(
            "AutoModel",
            "patchtst",
            (),
            {
                "num_input_channels": 3,
                "context_length": 32,
                "patch_length": 8,
                "patch_stride": 8,
                "ffn_dim": 64,
                "d_model": 32,
            },
            results=("last_hidden_state",),
        ),
        lambda n: (torch.randn(n, 32, 3),),
        "batch",
        ((0,),),
    ),
    Architecture(
        "patchtsmixer",
        "time series",
        "transformers",
        from_auto(
            "AutoModel",
            "patchtsmixer",
            (),
            {
                "num_input_channels": 3,
                "context_length": 32,
                "patch_length": 8,
                "patch_stride": 8,
                "d_model": 16,
            },
            results=("last_hidden_state",),
        ),
        lambda n: (torch.randn(n, 32, 3),),
    ),
    Architecture(
        "decision_transformer",
        "time series",
        "transformers",
        from_auto(
            "AutoModel",
            "decision_transformer",
            ("states", "actions", "rewards", "returns_to_go", "timesteps", "attention_mask"),
            {"state_dim": 5, "act_dim": 3, "n_layer": 2, "n_head": 4, "max_ep_len": 32},
        ),
        lambda n: (
            torch.randn(2, 4, 5),
            torch.randn(2, 4, 3),
            torch.randn(2, 4, 1),
            torch.randn(2, 4, 1),
            ids(2, 4, below=32),
            torch.ones(2, 4),
        ),
    ),
)
