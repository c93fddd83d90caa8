# SPDX-License-Identifier: Apache-2.0
"""Image classifiers of timm and torchvision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .spec import Architecture, image


def _timm(name: str, options: dict[str, Any]) -> Callable[[], Any]:
    def build() -> Any:
        import timm

        return timm.create_model(name, num_classes=10, **options)

    return build


def _torchvision(name: str, options: dict[str, Any]) -> Callable[[], Any]:
    def build() -> Any:
        import torchvision

        return torchvision.models.get_model(name, weights=None, num_classes=10, **options)

    return build


def _classifier(name: str, side: int = 64, dynamic: bool = False, **options: Any) -> Architecture:
    more: dict[str, Any] = {"symbolic": "batch", "axes": ((0,),)} if dynamic else {}
    return Architecture(
        name, "vision", "timm", _timm(name, options), lambda n: (image(n, side),), sizes=(2, 3), **more
    )


def _other(name: str, side: int = 64, **options: Any) -> Architecture:
    label = f"torchvision-{name}"
    return Architecture(
        label, "vision", "torchvision", _torchvision(name, options), lambda n: (image(n, side),)
    )


_VIT: dict[str, Any] = {"img_size": 64, "embed_dim": 64, "depth": 2, "num_heads": 4}
_SWIN: dict[str, Any] = {
    "img_size": 64,
    "embed_dim": 16,
    "depths": (2, 2),
    "num_heads": (2, 4),
    "window_size": 4,
}

ARCHITECTURES = (
    _classifier("resnet10t", dynamic=True),
    _classifier("test_resnet"),
    _classifier("test_vit", side=160),
    _classifier("test_efficientnet", dynamic=True),
    _classifier("test_convnext", dynamic=True),
    _classifier("test_byobnet"),
    _classifier("test_nfnet"),
    _classifier("test_mambaout"),
    _classifier("vit_base_patch16_224", dynamic=True, **_VIT),
    _classifier("deit_base_distilled_patch16_224", **_VIT),
    _classifier("beit_base_patch16_224", **_VIT),
    _classifier("eva02_tiny_patch14_224", side=56, **{**_VIT, "img_size": 56}),
    _classifier("vit_relpos_base_patch16_224", **_VIT),
    _classifier("cait_xxs24_224", **_VIT),
    _classifier("swin_tiny_patch4_window7_224", dynamic=True, **_SWIN),
    _classifier("swinv2_tiny_window8_256", **_SWIN),
    _classifier("mixer_s32_224", side=224, dynamic=True),
    _classifier("resmlp_12_224", side=224),
    _classifier("convnextv2_atto", depths=(1, 1, 1, 1), dims=(16, 24, 32, 40)),
    _classifier("mobilenetv2_035"),
    _classifier("mobilenetv3_small_050", dynamic=True),
    _classifier("mobilenetv4_conv_small_035"),
    _classifier("regnetx_002"),
    _classifier("ghostnet_050"),
    _classifier("lcnet_035"),
    _classifier("densenet121", growth_rate=8, block_config=(2, 2, 2, 2)),
    _classifier("mobilevit_xxs"),
    _classifier("mobilevitv2_050"),
    _classifier("levit_128s", side=224),
    _classifier("poolformer_s12"),
    _classifier("xcit_nano_12_p16_224", img_size=64, embed_dim=64, depth=2, num_heads=4),
    _classifier("edgenext_xx_small"),
    _classifier("fastvit_t8"),
    _classifier("repvgg_a0"),
    _classifier("sequencer2d_s", img_size=56, layers=(1, 1, 1, 1), embed_dims=(16, 24, 24, 24), side=56),
    _classifier("pvt_v2_b0", depths=(1, 1, 1, 1)),
    _classifier("focalnet_tiny_srf"),
    _classifier("davit_tiny", depths=(1, 1, 1, 1), embed_dims=(16, 24, 32, 48), num_heads=(2, 3, 4, 6)),
    _classifier("efficientvit_b0"),
    _classifier("tiny_vit_5m_224", side=224),
    _classifier("coatnet_pico_rw_224", side=224),
    _classifier("efficientformerv2_s0", side=224),
    _classifier("ese_vovnet19b_dw"),
    _classifier("dla46_c"),
    _classifier("repghostnet_050"),
    _classifier("mnasnet_small"),
    _classifier("hrnet_w18_small"),
    _classifier("res2net50_14w_8s", layers=(1, 1, 1, 1)),
    _classifier("rexnetr_100"),
    _classifier("starnet_s050"),
    _classifier("shvit_s1"),
    _classifier("twins_svt_small", depths=(1, 1, 1, 1), embed_dims=(16, 32, 48, 64), num_heads=(1, 2, 3, 4)),
    _classifier("crossvit_tiny_240", side=240),
    _classifier("visformer_tiny", img_size=64, embed_dim=48, depth=(1, 1, 1), num_heads=2),
    _classifier("convit_tiny", **_VIT),
    _classifier("gmlp_s16_224", side=224),
    _classifier("mobileone_s0"),
    _classifier("swiftformer_xs", side=224),
    _classifier("resnest14d"),
    _classifier("hgnetv2_b0"),
    _classifier("coat_lite_tiny", side=224, serial_depths=(1, 1, 1, 1)),
    _classifier("selecsls42b"),
    _classifier("vitamin_small_224", side=224),
    _other("alexnet"),
    _other("mnasnet0_5"),
    _other("efficientnet_b0", side=32),
    _other("swin_v2_t", side=32),
    _other("squeezenet1_1"),
    _other("shufflenet_v2_x0_5"),
    _other("googlenet", aux_logits=False, init_weights=False),
    _other("maxvit_t", side=224),
)
