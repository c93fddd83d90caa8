# SPDX-License-Identifier: Apache-2.0
"""Vision models, by timm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .spec import Model


def _timm(
    architecture: str, small: Mapping[str, Any], small_architecture: str = ""
) -> Callable[[str, int], tuple[Any, list[Any]]]:
    """Return a builder of one of timm's architectures. ``small`` are arguments at the small size."""

    def build(size: str, batch: int) -> tuple[Any, list[Any]]:
        import timm
        import torch

        if size == "full":
            return timm.create_model(architecture), [torch.randn(batch, 3, 224, 224)]
        model = timm.create_model(small_architecture or architecture, num_classes=10, **small)
        return model, [torch.randn(batch, 3, 64, 64)]

    return build


def _mixer(size: str, batch: int) -> tuple[Any, list[Any]]:
    import torch
    from timm.models.mlp_mixer import MlpMixer

    if size == "full":
        return MlpMixer(), [torch.randn(batch, 3, 224, 224)]
    model = MlpMixer(num_classes=10, img_size=64, num_blocks=2, embed_dim=64)
    return model, [torch.randn(batch, 3, 64, 64)]


_VIT = {"img_size": 64, "embed_dim": 64, "depth": 2, "num_heads": 4}
_SWIN = {"img_size": 64, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4}
_PACKAGES = ("timm",)
_NOTE = "an image of 224 x 224"

MODELS = (
    Model("vit-b16", _timm("vit_base_patch16_224", _VIT), _PACKAGES, _NOTE),
    Model("swin-t", _timm("swin_tiny_patch4_window7_224", _SWIN), _PACKAGES, _NOTE),
    Model("mixer-b16", _mixer, _PACKAGES, _NOTE),
    Model("resnet18", _timm("resnet18", {}), _PACKAGES, _NOTE),
    Model("resnet50", _timm("resnet50", {}), _PACKAGES, _NOTE),
    Model("mobilenetv3", _timm("mobilenetv3_large_100", {}, "mobilenetv3_small_050"), _PACKAGES, _NOTE),
    Model("efficientnet-b0", _timm("efficientnet_b0", {}, "test_efficientnet"), _PACKAGES, _NOTE),
    Model("convnext-t", _timm("convnext_tiny", {}, "test_convnext"), _PACKAGES, _NOTE),
)
