# SPDX-License-Identifier: Apache-2.0
"""Detection, segmentation, depth, optical flow and video, and models of images and texts together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .language import SMALL, from_auto
from .spec import Architecture, Tensors, ids, image

_TOWER: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
_SIGHT: dict[str, Any] = {**_TOWER, "image_size": 32, "patch_size": 8}
_DETR: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_queries": 5,
    "num_hidden_layers": None,
}


def _resnet() -> Any:
    from transformers import ResNetConfig

    return ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        out_features=["stage2", "stage3", "stage4"],
        layer_type="basic",
    )


def _torchvision(group: str, name: str, **options: Any) -> Callable[[], Any]:
    def build() -> Any:
        import torchvision

        module = getattr(torchvision.models, group) if group else torchvision.models
        return Tensors(getattr(module, name)(weights=None, weights_backbone=None, **options))

    return build


def _video(name: str) -> Callable[[], Any]:
    def build() -> Any:
        import torchvision

        return getattr(torchvision.models.video, name)(weights=None, num_classes=10)

    return build


def _raft() -> Any:
    from torchvision.models.optical_flow import raft_small

    return Tensors(raft_small(weights=None), num_flow_updates=2)


def _detr(kind: str, **options: Any) -> Callable[[], Any]:
    def build() -> Any:
        given = {
            **_DETR,
            **options,
            "backbone_config": _resnet(),
            "use_timm_backbone": False,
            "backbone": None,
        }
        return from_auto("AutoModelForObjectDetection", kind, (), given, results=("logits", "pred_boxes"))()

    return build


def _scene(
    name: str,
    maker: str,
    build: Callable[[], Any],
    side: int = 64,
    symbolic: str = "",
    family: str = "scenes",
) -> Architecture:
    axes = ((0,),) if symbolic else ()
    return Architecture(name, family, maker, build, lambda n: (image(n, side),), symbolic, axes)


def _two(kind: str, symbolic: str = "", side: int = 32, **options: Any) -> Architecture:
    """Return a model of an image and a text, such as CLIP."""
    text = {**SMALL, **_TOWER, "max_position_embeddings": 32}
    given = {"text_config": text, "vision_config": _SIGHT, "projection_dim": 32, **options}
    build = from_auto("AutoModel", kind, ("input_ids", "pixel_values"), given)

    def inputs(n: int) -> tuple[Any, ...]:
        tokens = ids(n, 8)
        tokens[:, -1] = 2
        return tokens, image(n, side)

    axes = ((0,), (0,)) if symbolic else ()
    return Architecture(kind, "images and texts", "transformers", build, inputs, symbolic, axes)


_SEGFORMER: dict[str, Any] = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "sr_ratios": [2, 1],
    "hidden_sizes": [16, 32],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "num_attention_heads": [2, 4],
    "mlp_ratios": [2, 2],
    "decoder_hidden_size": 32,
}
_DPT: dict[str, Any] = {
    **_SIGHT,
    "num_hidden_layers": 4,
    "image_size": 64,
    "patch_size": 16,
    "is_hybrid": False,
    "backbone_out_indices": [0, 1, 2, 3],
    "neck_hidden_sizes": [8, 16, 24, 32],
    "fusion_hidden_size": 16,
}

ARCHITECTURES = (
    _scene("fcn_resnet50", "torchvision", _torchvision("segmentation", "fcn_resnet50", num_classes=5)),
    _scene(
        "deeplabv3_mobilenet",
        "torchvision",
        _torchvision("segmentation", "deeplabv3_mobilenet_v3_large", num_classes=5),
        symbolic="batch",
    ),
    _scene(
        "lraspp_mobilenet",
        "torchvision",
        _torchvision("segmentation", "lraspp_mobilenet_v3_large", num_classes=5),
    ),
    Architecture(
        "r3d_18", "scenes", "torchvision", _video("r3d_18"), lambda n: (torch.randn(n, 3, 4, 32, 32),)
    ),
    Architecture(
        "mvit", "scenes", "torchvision", _video("mvit_v1_b"), lambda n: (torch.randn(1, 3, 16, 224, 224),)
    ),
    Architecture("raft", "scenes", "torchvision", _raft, lambda n: (image(1, 128), image(1, 128))),
    _scene("detr", "transformers", _detr("detr")),
    _scene("conditional_detr", "transformers", _detr("conditional_detr")),
    _scene(
        "deformable_detr", "transformers", _detr("deformable_detr", num_feature_levels=3, decoder_layers=2)
    ),
    _scene(
        "rt_detr",
        "transformers",
        _detr(
            "rt_detr",
            encoder_in_channels=[16, 24, 32],
            encoder_hidden_dim=32,
            decoder_in_channels=[32, 32, 32],
            num_denoising=0,
        ),
    ),
    _scene(
        "yolos",
        "transformers",
        from_auto(
            "AutoModelForObjectDetection",
            "yolos",
            (),
            {**_SIGHT, "image_size": [64, 64], "num_detection_tokens": 5},
            results=("logits", "pred_boxes"),
        ),
        symbolic="batch",
    ),
    _scene(
        "segformer",
        "transformers",
        from_auto("AutoModelForSemanticSegmentation", "segformer", (), _SEGFORMER),
        symbolic="batch",
    ),
    _scene("dpt", "transformers", from_auto("AutoModelForDepthEstimation", "dpt", (), _DPT)),
    _scene(
        "upernet",
        "transformers",
        lambda: from_auto(
            "AutoModelForSemanticSegmentation",
            "upernet",
            (),
            {"backbone_config": _resnet(), "hidden_size": 16, "use_auxiliary_head": False, "num_labels": 5},
        )(),
    ),
    _scene("dinov2", "transformers", from_auto("AutoModel", "dinov2", (), {**_SIGHT, "image_size": 64})),
    _scene(
        "hiera",
        "transformers",
        from_auto(
            "AutoModel",
            "hiera",
            (),
            {"image_size": [64, 64], "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 4, 8]},
        ),
    ),
    _two("clip", "batch"),
    _two("siglip", "batch"),
    _two("blip", image_text_hidden_size=32),
    _two("chinese_clip"),
    _two("owlvit"),
    Architecture(
        "vilt",
        "images and texts",
        "transformers",
        from_auto("AutoModel", "vilt", ("input_ids", "pixel_values", "pixel_mask"), _SIGHT),
        lambda n: (ids(2, 8), image(2, 32), torch.ones(2, 32, 32, dtype=torch.int64)),
    ),
    Architecture(
        "vision-encoder-decoder-trocr",
        "images and texts",
        "transformers",
        from_auto(
            "AutoModelForCausalLM",
            "trocr",
            ("input_ids", "encoder_hidden_states"),
            {
                "d_model": 64,
                "decoder_layers": 2,
                "decoder_attention_heads": 4,
                "decoder_ffn_dim": 128,
                "cross_attention_hidden_size": 64,
                "is_decoder": True,
                "add_cross_attention": True,
            },
            use_cache=False,
        ),
        lambda n: (ids(2, 6), torch.randn(2, 9, 64)),
    ),
)
