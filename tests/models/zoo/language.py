# SPDX-License-Identifier: Apache-2.0
"""Transformers of text, written as the common libraries write them: BERT, GPT-2, T5, RoBERTa's positions."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

from .spec import Made, from_torch, spread, tokens

WIDTH, HEADS, WORDS = 32, 4, 50


class Attention(nn.Module):
    """Multi-head attention through ``scaled_dot_product_attention``."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=bias) for _ in range(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None, scale: float | None = None) -> torch.Tensor:
        batch, length, _ = x.shape
        layers = (self.query, self.key, self.value)
        q, k, v = (layer(x).view(batch, length, HEADS, -1).transpose(1, 2) for layer in layers)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class BertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norms[0](x + self.attention(x, mask))
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    """Post-norm encoder. A mask of padding is made additive."""

    def __init__(self, positions_of_mask: bool = False) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.norm, self.layer = nn.LayerNorm(WIDTH), BertLayer()
        self.positions_of_mask = positions_of_mask

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.positions_of_mask:  # RoBERTa's: padding is no place
            there = words.ne(1).int()
            places = (torch.cumsum(there, dim=1).type_as(there) * there).long() + 1
        else:
            places = torch.arange(words.shape[1]).unsqueeze(0)
        x = self.norm(self.words(words) + self.positions(places))
        return self.layer(x, (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0)


class Gpt2(nn.Module):
    """A decoder: positions from the mask, a causal mask of infinities, the greedy next token next to the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        length = words.shape[1]
        places = (mask.long().cumsum(-1) - 1).clamp(min=0)
        x = self.words(words) + self.positions(places)
        causal = torch.full((length, length), float("-inf"), dtype=x.dtype).triu(1)
        x = x + self.attention(self.norms[0](x), causal)
        x = x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))
        logits = F.linear(self.norms[2](x), self.words.weight)
        return logits, logits[:, -1].argmax(-1)


class RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class T5(nn.Module):
    """An encoder layer: RMS norms, a bias by bucketed distance, gated GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.distances = nn.Embedding(WORDS, WIDTH), nn.Embedding(16, HEADS)
        self.attention = Attention(bias=False)
        self.norms = nn.ModuleList(RmsNorm() for _ in range(3))
        self.gate, self.up = nn.Linear(WIDTH, 48, bias=False), nn.Linear(WIDTH, 48, bias=False)
        self.down = nn.Linear(48, WIDTH, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        places = torch.arange(words.shape[1])
        distance = places[None, :] - places[:, None]
        near = distance.abs().to(self.down.weight.dtype)
        far = 4 + (torch.log(near.clamp(min=1) / 4) / math.log(16 / 4) * 4).long()
        bucket = (distance > 0).long() * 8 + torch.where(near < 4, near.long(), far.clamp(max=7))
        bias = self.distances(bucket).permute(2, 0, 1).unsqueeze(0)
        x = self.words(words)
        x = x + self.attention(self.norms[0](x), bias, 1.0)
        y = self.norms[1](x)
        return self.norms[2](x + self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y)))


def _padded(batch: int = 2, length: int = 10, low: int = 0) -> list:
    mask = tokens(2, batch, length)
    mask[:, 0] = 1
    return [tokens(WORDS, batch, length, low=low), mask]


def bert() -> Made:
    return from_torch(Bert(), _padded)


def bert_dynamic() -> Made:
    batch, length = Dim("batch", min=1, max=8), Dim("length", min=2, max=64)
    shapes = {"words": {0: batch, 1: length}, "mask": {0: batch, 1: length}}
    return from_torch(
        Bert(), _padded, shapes, ((2, 10), *spread((1, 2, 3, 5, 8), (2, 3, 7, 16, 31, 33, 48, 64)))
    )


def roberta() -> Made:
    return from_torch(Bert(positions_of_mask=True), _padded)


def gpt2() -> Made:
    return from_torch(Gpt2(), _padded)


def t5_encoder() -> Made:
    return from_torch(T5(), lambda: [tokens(WORDS, 2, 12)])
