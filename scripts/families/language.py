# SPDX-License-Identifier: Apache-2.0
"""Encoders and encoder-decoders of language, by the transformers package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .spec import PAIR, VOCABULARY, Architecture, Tensors, ids

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def configured(kind: str, options: dict[str, Any]) -> Any:
    """Return a configuration of transformers of a model type, small unless ``options`` say otherwise.

    An option that is None is left to the model type.
    """
    from transformers import CONFIG_MAPPING

    given = {**SMALL, **options}
    return CONFIG_MAPPING[kind](**{name: value for name, value in given.items() if value is not None})


def from_auto(
    auto: str, kind: str, names: tuple[str, ...], options: dict[str, Any], **fixed: Any
) -> Callable[[], Any]:
    """Return a builder of the model that one of transformers' ``Auto`` classes makes of a model type."""

    def build() -> Any:
        import transformers

        model = getattr(transformers, auto).from_config(configured(kind, options))
        return Tensors(model, names, **fixed)

    return build


def _encoder(kind: str, symbolic: str = "", length: int = 12, **options: Any) -> Architecture:
    axes = {"": (), "length": ((1,), (1,)), "batch": ((0,), (0,))}[symbolic]

    def inputs(n: int) -> tuple[Any, ...]:
        batch, size = (n, length) if symbolic == "batch" else (2, n)
        mask = ids(batch, size, below=4).clamp(max=1)
        mask[:, 0] = 1
        return ids(batch, size), mask

    build = from_auto("AutoModel", kind, ("input_ids", "attention_mask"), options)
    sizes = (2, 3) if symbolic == "batch" else (length, 7)
    return Architecture(kind, "language", "transformers", build, inputs, symbolic, axes, sizes)


def _pair(kind: str, symbolic: str = "", **options: Any) -> Architecture:
    """Return a model of two texts: an encoder's and a decoder's."""
    names = ("input_ids", "decoder_input_ids")
    build = from_auto("AutoModel", kind, names, {**PAIR, **options}, use_cache=False)
    axes = ((1,), ()) if symbolic else ()
    return Architecture(
        kind, "language", "transformers", build, lambda n: (ids(2, n), ids(2, 6)), symbolic, axes, (12, 7)
    )


_T5: dict[str, Any] = {
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
}

ARCHITECTURES = (
    _encoder("bert", "length"),
    _encoder("roberta", "length"),
    _encoder("distilbert", "batch", dim=64, n_layers=2, n_heads=4, hidden_dim=128),
    _encoder("albert", "length", embedding_size=32),
    _encoder("electra", embedding_size=32),
    _encoder("deberta", pos_att_type=["c2p", "p2c"], relative_attention=True),
    _encoder("deberta-v2", "batch", pos_att_type=["c2p", "p2c"], relative_attention=True, conv_kernel_size=3),
    _encoder("mpnet"),
    _encoder("xlnet", max_position_embeddings=None, d_model=64, n_layer=2, n_head=4, d_inner=128),
    _encoder(
        "funnel",
        architectures=["FunnelModel"],
        num_hidden_layers=None,
        block_sizes=[1, 1],
        d_model=64,
        n_head=4,
        d_head=16,
        d_inner=128,
        num_decoder_layers=1,
    ),
    _encoder("longformer", attention_window=4, length=16),
    _encoder("big_bird", attention_type="original_full"),
    _encoder("convbert", embedding_size=32),
    _encoder("squeezebert", embedding_size=64),
    _encoder("mobilebert", intra_bottleneck_size=32, embedding_size=32, true_hidden_size=32),
    _encoder("roformer", "length", embedding_size=64),
    _encoder("modernbert", "length", global_attn_every_n_layers=2, local_attention=8),
    _encoder("esm", position_embedding_type="rotary", mask_token_id=3),
    _encoder("xlm-roberta"),
    _encoder("layoutlm"),
    _encoder("nystromformer", segment_means_seq_len=12, num_landmarks=12),
    _encoder("megatron-bert"),
    _encoder("ibert"),
    _encoder("rembert", input_embedding_size=32, output_embedding_size=32),
    _encoder("flaubert", emb_dim=64, n_layers=2, n_heads=4),
    _encoder("roc_bert", enable_pronunciation=False, enable_shape=False),
    Architecture(
        "fnet",
        "language",
        "transformers",
        from_auto("AutoModel", "fnet", ("input_ids",), {}),
        lambda n: (ids(2, 12),),
    ),
    Architecture(
        "canine",
        "language",
        "transformers",
        from_auto("AutoModel", "canine", ("input_ids",), {"num_hash_buckets": 64}),
        lambda n: (ids(2, 32),),
    ),
    Architecture(
        "t5",
        "language",
        "transformers",
        from_auto("AutoModel", "t5", ("input_ids", "decoder_input_ids"), _T5, use_cache=False),
        lambda n: (ids(2, n), ids(2, 6)),
        "length",
        ((1,), ()),
        (12, 7),
    ),
    Architecture(
        "switch_transformers",
        "mixture of experts",
        "transformers",
        from_auto(
            "AutoModel",
            "switch_transformers",
            ("input_ids", "decoder_input_ids"),
            {**_T5, "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
            use_cache=False,
        ),
        lambda n: (ids(2, 12), ids(2, 6)),
    ),
    _pair("bart", "length"),
    _pair("pegasus"),
    _pair("m2m_100"),
    _pair("marian"),
    _pair("blenderbot"),
    _pair("plbart"),
    _pair("bigbird_pegasus", attention_type="original_full"),
    _pair("led", attention_window=4),
)
