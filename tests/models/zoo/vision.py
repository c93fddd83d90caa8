# SPDX-License-Identifier: Apache-2.0
"""Models of images: ViT, Swin, Mixer, ResNet, MobileNet, ConvNeXt, a U-Net's block, style transfer."""

from __future__ import annotations

import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

from .language import WIDTH, Attention
from .spec import Made, from_torch, normal, spread


class Vit(nn.Module):
    """Patches, a class token, one pre-norm layer, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, stride=8)
        self.token, self.places = (
            nn.Parameter(torch.zeros(1, 1, WIDTH)),
            nn.Parameter(torch.randn(1, 17, WIDTH)),
        )
        self.attention = Attention()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.up, self.down, self.head = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        x = x + self.attention(self.norms[0](x), None)
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return self.head(self.norms[2](x)[:, 0])


class Swin(nn.Module):
    """A block of shifted windows of 4 x 4, with its mask, on channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        area = torch.zeros(8, 8)
        for i, rows in enumerate((slice(0, 4), slice(4, 6), slice(6, 8))):
            for j, columns in enumerate((slice(0, 4), slice(4, 6), slice(6, 8))):
                area[rows, columns] = 3 * i + j
        windows = area.view(2, 4, 2, 4).permute(0, 2, 1, 3).reshape(4, 16)
        apart = windows[:, None, :] != windows[:, :, None]
        self.register_buffer("mask", torch.where(apart, -100.0, 0.0).unsqueeze(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.roll(self.norms[0](x), shifts=(-2, -2), dims=(1, 2))
        y = y.view(1, 2, 4, 2, 4, WIDTH).permute(0, 1, 3, 2, 4, 5).reshape(4, 16, WIDTH)
        y = self.attention(y, self.mask)
        y = y.view(1, 2, 2, 4, 4, WIDTH).permute(0, 1, 3, 2, 4, 5).reshape(1, 8, 8, WIDTH)
        x = x + torch.roll(y, shifts=(2, 2), dims=(1, 2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Mixer(nn.Module):
    """Layers across patches and across channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.across = nn.ModuleList([nn.Linear(16, 24), nn.Linear(24, 16)])
        self.within = nn.ModuleList([nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x).transpose(1, 2)
        x = x + self.across[1](F.gelu(self.across[0](y))).transpose(1, 2)
        x = x + self.within[1](F.gelu(self.within[0](self.norms[1](x))))
        return self.norms[2](x).mean(1)


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(after) for _ in range(3))
        self.short = nn.Conv2d(before, after, 1, stride=stride, bias=False) if stride > 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        return F.relu(y + (self.norms[2](self.short(x)) if self.short is not None else x))


class ResNet(nn.Module):
    """A stem with batch norm, ReLU and pooling, two residual blocks, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2))
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, stride=2, padding=1)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(self.blocks(x), 1), 1))


class MobileNet(nn.Module):
    """An inverted residual with hard swish and squeeze-and-excitation."""

    def __init__(self) -> None:
        super().__init__()
        widths = ((16, 48, 1, 1, 0), (48, 48, 5, 48, 2), (48, 16, 1, 1, 0))
        self.layers = nn.ModuleList(
            nn.Conv2d(a, b, k, groups=g, padding=p, bias=False) for a, b, k, g, p in widths
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b, *_ in widths)
        self.squeeze = nn.ModuleList([nn.Conv2d(48, 12, 1), nn.Conv2d(12, 48, 1)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.hardswish(self.norms[0](self.layers[0](x)))
        y = F.hardswish(self.norms[1](self.layers[1](y)))
        weight = self.squeeze[1](F.relu(self.squeeze[0](F.adaptive_avg_pool2d(y, 1))))
        return x + self.norms[2](self.layers[2](y * F.hardsigmoid(weight)))


class ConvNext(nn.Module):
    """A stem with a norm over channels, and a block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(3, 16, 4, stride=4), nn.Conv2d(16, 16, 7, padding=3, groups=16)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.norms[0](self.stem(image).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        y = self.norms[1](self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class UNetBlock(nn.Module):
    """Group norm, SiLU and convolutions with a time embedding, and attention over the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(8, WIDTH) for _ in range(3))
        self.convolutions = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(2))
        self.time, self.attention = nn.Linear(16, WIDTH), Attention()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.convolutions[0](F.silu(self.norms[0](x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        x = x + self.convolutions[1](F.silu(self.norms[1](y)))
        pixels = self.norms[2](x).flatten(2).transpose(1, 2)
        return x + self.attention(pixels, None).transpose(1, 2).reshape(x.shape)


class StyleTransfer(nn.Module):
    """Instance norms and ReLU between convolutions, and an upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            [nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 8, 3, padding=1)]
        )
        self.norms = nn.ModuleList(nn.InstanceNorm2d(8, affine=True) for _ in range(2))
        self.last = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for convolution, norm in zip(self.convolutions, self.norms):
            x = F.relu(norm(convolution(x)))
        return torch.tanh(self.last(F.interpolate(x, scale_factor=2, mode="nearest")))


def vit() -> Made:
    return from_torch(Vit(), lambda: [normal(2, 3, 32, 32)])


def swin() -> Made:
    return from_torch(Swin(), lambda: [normal(1, 8, 8, WIDTH)])


def mixer() -> Made:
    return from_torch(Mixer(), lambda: [normal(2, 16, WIDTH)])


def resnet() -> Made:
    return from_torch(ResNet(), lambda: [normal(1, 3, 32, 32)])


def mobilenet() -> Made:
    return from_torch(MobileNet(), lambda: [normal(1, 16, 8, 8)])


def convnext() -> Made:
    return from_torch(ConvNext(), lambda: [normal(1, 3, 32, 32)])


def convnext_dynamic() -> Made:
    shapes = ({0: Dim("batch", min=1, max=12)},)
    return from_torch(ConvNext(), lambda b: [normal(b, 3, 32, 32)], shapes, ((2,), *spread(range(1, 13))))


def unet_block() -> Made:
    return from_torch(UNetBlock(), lambda: [normal(1, WIDTH, 4, 4), normal(1, 16)])


def style_transfer() -> Made:
    return from_torch(StyleTransfer(), lambda: [normal(1, 3, 16, 16)])
