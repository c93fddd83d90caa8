# SPDX-License-Identifier: Apache-2.0
"""Recurrent models, unrolled: CRNN, DIEN, and an encoder and a decoder with attention of speech."""

from __future__ import annotations

import torch
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


class Crnn(nn.Module):
    """Text in a line: a convolution with batch norm and pooling, an LSTM of both directions, log softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.cells = nn.ModuleList(LstmCell(16, 8) for _ in range(2))
        self.head = nn.Linear(16, 12)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.convolution(image))), (4, 4))  # [b, 8, 2, steps]
        columns = x.permute(3, 0, 1, 2).flatten(2)
        both = []
        for cell, order in zip(self.cells, (1, -1)):
            h = c = torch.zeros(columns.shape[1], 8, dtype=x.dtype)
            found = []
            for step in list(range(columns.shape[0]))[::order]:
                h, c = cell(columns[step], h, c)
                found.append(h)
            both.append(torch.stack(found[::order]))
        return F.log_softmax(self.head(torch.cat(both, -1)), -1)


class GruCell(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_input, self.of_state = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)

    def forward(
        self, x: torch.Tensor, h: torch.Tensor, attention: torch.Tensor | None = None
    ) -> torch.Tensor:
        reset_x, update_x, new_x = self.of_input(x).chunk(3, -1)
        reset_h, update_h, new_h = self.of_state(h).chunk(3, -1)
        new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
        update = torch.sigmoid(update_x + update_h)
        if attention is not None:  # AUGRU: the attention's score opens the gate
            update = update * attention
        return (1 - update) * h + update * new


class Dien(nn.Module):
    """Clicks: embeddings of behaviours, a GRU, attention to the target, an AUGRU, layers with Dice."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(40, 8)
        self.first, self.second = GruCell(8), GruCell(8)
        self.score, self.up, self.out = nn.Linear(32, 1), nn.Linear(16, 12), nn.Linear(12, 1)
        self.norm, self.slope = nn.BatchNorm1d(12, affine=False), nn.Parameter(torch.zeros(12))

    def forward(self, behaviours: torch.Tensor, target: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x, goal = self.items(behaviours), self.items(target)
        h = torch.zeros_like(goal)
        states = []
        for step in range(x.shape[1]):
            h = self.first(x[:, step], h)
            states.append(h)
        interest = torch.stack(states, 1)
        beside = goal.unsqueeze(1).expand_as(interest)
        features = torch.cat([interest, beside, interest - beside, interest * beside], -1)
        scores = self.score(features).squeeze(-1).masked_fill(mask == 0, float("-inf"))
        weights = torch.softmax(scores, -1)
        h = torch.zeros_like(goal)
        for step in range(x.shape[1]):
            h = self.second(interest[:, step], h, weights[:, step : step + 1])
        y = self.up(torch.cat([h, goal], -1))
        gate = torch.sigmoid(self.norm(y))
        return torch.sigmoid(self.out(gate * y + (1 - gate) * self.slope * y))


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
    """Three steps of an LSTM with additive attention to the encoder; each greedy letter is the next input."""

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
    return from_torch(Crnn(), lambda: [normal(2, 1, 8, 12)])


def dien() -> Made:
    def draw() -> list:
        mask = tokens(2, 2, 4)
        mask[:, 0] = 1
        return [tokens(40, 2, 4), tokens(40, 2), mask]

    return from_torch(Dien(), draw)


def asr_encoder() -> Made:
    return from_torch(AsrEncoder(), lambda: [normal(2, 8, 20)])


def asr_encoder_dynamic() -> Made:
    shapes = ({0: Dim("batch", min=1, max=8), 2: Dim("frames", min=4, max=128)},)
    sizes = ((2, 20), *spread((1, 2, 3, 5, 8), (4, 5, 9, 16, 33, 64, 100, 128)))
    return from_torch(AsrEncoder(), lambda b, n: [normal(b, 8, n)], shapes, sizes)


def asr_decoder() -> Made:
    return from_torch(AsrDecoder(), lambda: [normal(2, 6, 16), tokens(20, 2)])
