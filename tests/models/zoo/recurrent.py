# SPDX-License-Identifier: Apache-2.0
"""Recurrent models: CRNN and DIEN as they are measured, but small, and an encoder and a decoder of speech."""

from __future__ import annotations

import torch
from models import networks
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

from .spec import Made, from_torch, normal, spread, tokens


class LstmCell(nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.of_input, self.of_state = (
            nn.Linear(features, 4 * hidden),
            nn.Linear(hidden, 4 * hidden, bias=False),
        )

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        i, f, g, o = (self.of_input(x) + self.of_state(h)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class AsrEncoder(nn.Module):
    """A Conformer's block behind a convolution that takes every second frame."""

    def __init__(self) -> None:
        super().__init__()
        self.sample, self.project = nn.Conv1d(8, 16, 3, stride=2, padding=1), nn.Linear(16, 16)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(4))
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.pointwise, self.depthwise = nn.Conv1d(16, 32, 1), nn.Conv1d(16, 16, 5, padding=2, groups=16)
        self.batch_norm, self.last = nn.BatchNorm1d(16), nn.Conv1d(16, 16, 1)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        x = self.project(F.gelu(self.sample(sound)).transpose(1, 2))
        x = x + 0.5 * self.down(F.silu(self.up(self.norms[0](x))))
        batch, length, width = x.shape
        query, key, value = (
            self.qkv(self.norms[1](x)).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        )
        mixed = torch.softmax(query @ key.transpose(-1, -2) / 8**0.5, -1) @ value
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        y = F.glu(self.pointwise(self.norms[2](x).transpose(1, 2)), dim=1)
        y = self.last(F.silu(self.batch_norm(self.depthwise(y)))).transpose(1, 2)
        return self.norms[3](x + y)


class AsrDecoder(nn.Module):
    """Three steps of an LSTM with additive attention to the encoder. Each greedy letter is the next input."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.cell = nn.Embedding(20, 8), LstmCell(24, 16)
        self.keys, self.query, self.energy = (
            nn.Linear(16, 16),
            nn.Linear(16, 16),
            nn.Linear(16, 1, bias=False),
        )
        self.out = nn.Linear(32, 20)

    def forward(self, memory: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys = self.keys(memory)
        h = c = torch.zeros(memory.shape[0], 16, dtype=memory.dtype)
        letter, found = first, []
        context = memory.mean(1)
        for _ in range(3):
            h, c = self.cell(torch.cat([self.letters(letter), context], -1), h, c)
            energy = self.energy(torch.tanh(keys + self.query(h).unsqueeze(1))).squeeze(-1)
            context = (torch.softmax(energy, -1).unsqueeze(1) @ memory).squeeze(1)
            scores = F.log_softmax(self.out(torch.cat([h, context], -1)), -1)
            letter = scores.argmax(-1)
            found.append(scores)
        return torch.stack(found, 1), letter


def crnn() -> Made:
    return from_torch(networks.crnn("small", 1)[0], lambda: [normal(2, 1, 32, 16)])


def dien() -> Made:
    return from_torch(networks.dien("small", 1)[0], lambda: [tokens(40, 2, 4), tokens(40, 2)])


def asr_encoder() -> Made:
    return from_torch(AsrEncoder(), lambda: [normal(2, 8, 20)])


def asr_encoder_dynamic() -> Made:
    shapes = ({0: Dim("batch", min=1, max=8), 2: Dim("frames", min=4, max=128)},)
    sizes = ((2, 20), *spread((1, 2, 3, 5, 8), (4, 5, 9, 16, 33, 64, 100, 128)))
    return from_torch(AsrEncoder(), lambda b, n: [normal(b, 8, n)], shapes, sizes)


def asr_decoder() -> Made:
    return from_torch(AsrDecoder(), lambda: [normal(2, 6, 16), tokens(20, 2)])
