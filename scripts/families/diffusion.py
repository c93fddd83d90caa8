# SPDX-License-Identifier: Apache-2.0
"""Networks of diffusion, by the diffusers package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .spec import Architecture, Tensors, image


def _diffusers(name: str, names: tuple[str, ...], options: dict[str, Any], **fixed: Any) -> Callable[[], Any]:
    def build() -> Any:
        import diffusers

        return Tensors(getattr(diffusers, name)(**options), names, **fixed)

    return build


def _network(
    name: str,
    kind: str,
    names: tuple[str, ...],
    inputs: Callable[[int], tuple[Any, ...]],
    options: dict[str, Any],
    axes: tuple[tuple[int, ...], ...] = (),
    **fixed: Any,
) -> Architecture:
    symbolic = "batch" if axes else ""
    return Architecture(
        name, "diffusion", "diffusers", _diffusers(kind, names, options, **fixed), inputs, symbolic, axes
    )


_BLOCKS: dict[str, Any] = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}
_CROSS: dict[str, Any] = {
    **_BLOCKS,
    "sample_size": 16,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 32,
    "attention_head_dim": 4,
}
_LATENT = ("hidden_states", "encoder_hidden_states", "timestep")


def _times(n: int) -> torch.Tensor:
    return torch.full((n,), 7, dtype=torch.int64)


ARCHITECTURES = (
    _network(
        "unet2d",
        "UNet2DModel",
        ("sample", "timestep"),
        lambda n: (image(n, 16), _times(n)),
        {
            **_BLOCKS,
            "sample_size": 16,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
            "attention_head_dim": 4,
        },
        ((0,), (0,)),
    ),
    _network(
        "unet2d-condition",
        "UNet2DConditionModel",
        ("sample", "timestep", "encoder_hidden_states"),
        lambda n: (image(n, 16, 4), _times(n), torch.randn(n, 7, 32)),
        _CROSS,
        ((0,), (0,), (0,)),
    ),
    _network(
        "controlnet",
        "ControlNetModel",
        ("sample", "timestep", "encoder_hidden_states", "controlnet_cond"),
        lambda n: (image(n, 16, 4), _times(n), torch.randn(n, 7, 32), image(n, 128)),
        {
            **{k: v for k, v in _CROSS.items() if k not in ("sample_size", "up_block_types")},
            "conditioning_embedding_out_channels": (8, 16, 16, 16),
        },
    ),
    _network(
        "autoencoder-kl",
        "AutoencoderKL",
        ("sample",),
        lambda n: (image(n, 32),),
        {
            **_BLOCKS,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
        },
        ((0,),),
    ),
    _network(
        "autoencoder-tiny",
        "AutoencoderTiny",
        ("sample",),
        lambda n: (image(n, 32),),
        {
            "encoder_block_out_channels": (16, 16),
            "decoder_block_out_channels": (16, 16),
            "num_encoder_blocks": (1, 2),
            "num_decoder_blocks": (2, 1),
        },
    ),
    _network(
        "vq-model",
        "VQModel",
        ("sample",),
        lambda n: (image(n, 32),),
        {
            **_BLOCKS,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "num_vq_embeddings": 16,
        },
    ),
    _network(
        "dit",
        "DiTTransformer2DModel",
        ("hidden_states", "timestep", "class_labels"),
        lambda n: (image(n, 16, 4), _times(n), torch.zeros(n, dtype=torch.int64)),
        {
            "num_attention_heads": 4,
            "attention_head_dim": 8,
            "num_layers": 2,
            "sample_size": 16,
            "norm_num_groups": 8,
        },
        ((0,), (0,), (0,)),
    ),
    _network(
        "pixart",
        "PixArtTransformer2DModel",
        _LATENT,
        lambda n: (image(n, 16, 4), torch.randn(n, 7, 32), _times(n)),
        {
            "num_attention_heads": 4,
            "attention_head_dim": 8,
            "num_layers": 2,
            "sample_size": 16,
            "cross_attention_dim": 32,
            "caption_channels": 32,
            "use_additional_conditions": False,
        },
        added_cond_kwargs={"resolution": None, "aspect_ratio": None},
    ),
    _network(
        "sd3",
        "SD3Transformer2DModel",
        ("hidden_states", "encoder_hidden_states", "pooled_projections", "timestep"),
        lambda n: (image(n, 16, 4), torch.randn(n, 7, 32), torch.randn(n, 24), _times(n)),
        {
            "sample_size": 16,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 2,
            "attention_head_dim": 8,
            "num_attention_heads": 4,
            "joint_attention_dim": 32,
            "caption_projection_dim": 32,
            "pooled_projection_dim": 24,
            "pos_embed_max_size": 16,
        },
    ),
    _network(
        "flux",
        "FluxTransformer2DModel",
        ("hidden_states", "encoder_hidden_states", "pooled_projections", "timestep", "img_ids", "txt_ids"),
        lambda n: (
            torch.randn(n, 16, 8),
            torch.randn(n, 7, 32),
            torch.randn(n, 24),
            torch.rand(n),
            torch.randint(0, 4, (16, 3)).float(),
            torch.zeros(7, 3),
        ),
        {
            "in_channels": 8,
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 24,
            "axes_dims_rope": (4, 4, 8),
        },
    ),
    _network(
        "sana",
        "SanaTransformer2DModel",
        _LATENT,
        lambda n: (image(n, 8, 4), torch.randn(n, 7, 32), _times(n)),
        {
            "in_channels": 4,
            "out_channels": 4,
            "num_attention_heads": 4,
            "attention_head_dim": 8,
            "num_layers": 2,
            "num_cross_attention_heads": 4,
            "cross_attention_head_dim": 8,
            "cross_attention_dim": 32,
            "caption_channels": 32,
            "sample_size": 8,
        },
    ),
    _network(
        "unet1d",
        "UNet1DModel",
        ("sample", "timestep"),
        lambda n: (torch.randn(n, 14, 16), _times(n)),
        {
            "sample_size": 16,
            "in_channels": 14,
            "out_channels": 14,
            "block_out_channels": (16, 32),
            "down_block_types": ("DownResnetBlock1D",) * 2,
            "up_block_types": ("UpResnetBlock1D",),
            "mid_block_type": "MidResTemporalBlock1D",
            "out_block_type": "OutConv1DBlock",
            "time_embedding_type": "positional",
            "act_fn": "mish",
            "use_timestep_embedding": True,
            "flip_sin_to_cos": False,
            "freq_shift": 1.0,
        },
    ),
)
