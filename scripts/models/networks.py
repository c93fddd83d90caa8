# SPDX-License-Identifier: Apache-2.0
"""Networks written in PyTorch's primitives: unrolled recurrent ones, and a block of a diffusion U-Net.

TVM's importer does not accept every form of PyTorch's recurrent layers, so they are written out. A layer's product of
its inputs and weights is computed for all steps at once, as in libraries.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn


class _Recurrent(nn.Module):
    """One direction of a recurrent layer over [steps, batch, features]."""

    gates = 0

    def __init__(self, features: int, hidden: int, backwards: bool = False) -> None:
        super().__init__()
        self.hidden, self.backwards = hidden, backwards
        self.of_input = nn.Linear(features, self.gates * hidden)
        self.of_state = nn.Linear(hidden, self.gates * hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps, batch = x.shape[0], x.shape[1]
        projected = self.of_input(x)
        state = self.first(torch.zeros(batch, self.hidden, dtype=x.dtype, device=x.device))
        found: list[torch.Tensor] = []
        for place in range(steps):
            state = self.step(projected[steps - 1 - place if self.backwards else place], state)
            found.append(state[0])
        return torch.stack(found[::-1] if self.backwards else found)

    def first(self, zeros: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the state before the first step. The hidden state comes first."""
        return (zeros,)

    def step(self, projected: torch.Tensor, state: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        raise NotImplementedError


class Lstm(_Recurrent):
    """An LSTM layer: gates in PyTorch's order."""

    gates = 4

    def first(self, zeros: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return zeros, zeros

    def step(self, projected: torch.Tensor, state: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden, cell = state
        i, f, g, o = (projected + self.of_state(hidden)).chunk(4, dim=-1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell), cell


class Gru(_Recurrent):
    """A GRU layer: gates in PyTorch's order."""

    gates = 3

    def step(self, projected: torch.Tensor, state: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        (hidden,) = state
        reset_x, update_x, new_x = projected.chunk(3, dim=-1)
        reset_h, update_h, new_h = self.of_state(hidden).chunk(3, dim=-1)
        update = torch.sigmoid(update_x + update_h)
        new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
        return (new + update * (hidden - new),)


class Both(nn.Module):
    """An LSTM layer of both directions, side by side."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.forwards, self.backwards = Lstm(features, hidden), Lstm(features, hidden, backwards=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.forwards(x), self.backwards(x)], dim=-1)


class Crnn(nn.Module):
    """A recogniser of lines of text: convolutions, two recurrent layers of both directions, and a classifier."""

    def __init__(self, width: int, hidden: int, classes: int, written_out: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 1
        for channels, pool in (
            (width, (2, 2)),
            (2 * width, (2, 2)),
            (4 * width, (2, 1)),
            (8 * width, (4, 1)),
        ):
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
            layers.append(nn.MaxPool2d(pool))
            before = channels
        self.features = nn.Sequential(*layers)
        self.recurrent: nn.Module
        if written_out:
            self.recurrent = nn.Sequential(Both(before, hidden), Both(2 * hidden, hidden))
        else:
            self.recurrent = nn.LSTM(before, hidden, num_layers=2, bidirectional=True)
        self.classify = nn.Linear(2 * hidden, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        columns = self.features(image).squeeze(2).permute(2, 0, 1)
        states = self.recurrent(columns)
        states = (
            states[0] if isinstance(states, tuple) else states
        )  # a layer of PyTorch returns its last state too
        return torch.log_softmax(self.classify(states), dim=-1)


class Dien(nn.Module):
    """Interests of a user: a GRU over clicks, attention to the offer, a GRU whose gate the attention opens, layers.

    The first GRU is PyTorch's layer. The second one has steps written out, since PyTorch has no such layer.
    """

    def __init__(self, items: int, width: int, inner: int) -> None:
        super().__init__()
        self.items = nn.Embedding(items, width)
        self.first = nn.GRU(width, width, batch_first=True)
        self.of_input, self.of_state = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)
        self.score = nn.Linear(4 * width, 1)
        self.up, self.out = nn.Linear(2 * width, inner), nn.Linear(inner, 1)

    def forward(self, clicks: torch.Tensor, offer: torch.Tensor) -> torch.Tensor:
        interest, _ = self.first(self.items(clicks))
        goal = self.items(offer)
        beside = goal.unsqueeze(1).expand_as(interest)
        features = torch.cat([interest, beside, interest - beside, interest * beside], dim=-1)
        weights = torch.softmax(self.score(features).squeeze(-1), dim=-1)
        projected = self.of_input(interest)
        hidden = torch.zeros_like(goal)
        for step in range(clicks.shape[1]):
            reset_x, update_x, new_x = projected[:, step].chunk(3, dim=-1)
            reset_h, update_h, new_h = self.of_state(hidden).chunk(3, dim=-1)
            update = torch.sigmoid(update_x + update_h) * weights[:, step : step + 1]
            new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
            hidden = hidden + update * (new - hidden)
        inner = torch.relu(self.up(torch.cat([hidden, goal], dim=-1)))
        return torch.sigmoid(self.out(inner))


class UNetBlock(nn.Module):
    """The repeated block of a diffusion U-Net: a residual block with a time embedding, and attention over pixels."""

    def __init__(self, channels: int, heads: int, groups: int = 32) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.GroupNorm(groups, channels) for _ in range(3))
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.time = nn.Linear(4 * channels, channels)
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        silu = nn.functional.silu
        y = self.convolutions[0](silu(self.norms[0](x)))
        y = y + self.time(silu(time)).unsqueeze(-1).unsqueeze(-1)
        x = x + self.convolutions[1](silu(self.norms[1](y)))
        batch, channels, height, width = x.shape
        tokens = self.norms[2](x).reshape(batch, channels, height * width).transpose(1, 2)
        parts = self.qkv(tokens).reshape(batch, height * width, 3, self.heads, channels // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        scores = query @ key.transpose(-1, -2) / math.sqrt(channels // self.heads)
        mixed = (
            (torch.softmax(scores, dim=-1) @ value).transpose(1, 2).reshape(batch, height * width, channels)
        )
        return x + self.out(mixed).transpose(1, 2).reshape(batch, channels, height, width)


class UNet(nn.Module):
    """A whole U-Net: blocks on the way down and up, two at each resolution, joined by skips."""

    def __init__(self, widths: tuple[int, ...], heads: int, groups: int) -> None:
        super().__init__()
        first, last = widths[0], widths[-1]
        self.enter, self.leave = nn.Conv2d(3, first, 3, padding=1), nn.Conv2d(first, 3, 3, padding=1)
        pairs = [nn.ModuleList(UNetBlock(w, heads, groups) for _ in range(2)) for w in widths]
        self.down, self.middle = nn.ModuleList(pairs), UNetBlock(last, heads, groups)
        self.up = nn.ModuleList(
            nn.ModuleList(UNetBlock(w, heads, groups) for _ in range(2)) for w in reversed(widths)
        )
        following = [*widths[1:], last]
        self.shrink = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in zip(widths, following))
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed([*zip(widths, following)])
        )
        self.join = nn.ModuleList(nn.Conv2d(2 * w, w, 1) for w in reversed(widths))
        self.times = nn.ModuleList(nn.Linear(first, 4 * w) for w in (*widths, last))

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        times = [layer(time) for layer in self.times]
        x, skips = self.enter(x), []
        for pair, smaller, at in zip(self.down, self.shrink, times):
            for block in pair:
                x = block(x, at)
            skips.append(x)
            x = smaller(x)
        x = self.middle(x, times[-1])
        for pair, larger, join, at in zip(self.up, self.grow, self.join, reversed(times[:-1])):
            x = join(torch.cat([larger(x), skips.pop()], dim=1))
            for block in pair:
                x = block(x, at)
        return self.leave(x)


def recurrent(kind: str, size: str, batch: int) -> tuple[Any, list[Any]]:
    """Build layers of ``kind`` ("lstm" or "gru"), one after the other."""
    layer = {"lstm": Lstm, "gru": Gru}[kind]
    hidden, steps, layers = (512, 32, 2) if size == "full" else (32, 4, 1)
    model = nn.Sequential(*(layer(hidden, hidden) for _ in range(layers)))
    return model, [torch.randn(steps, batch, hidden)]


def crnn(size: str, batch: int, written_out: bool = True) -> tuple[Any, list[Any]]:
    """Build a recogniser of text, with one step for four columns of the image.

    Its recurrent layers have their steps ``written_out``, or are PyTorch's.
    """
    width, hidden, classes, columns = (64, 256, 96, 128) if size == "full" else (8, 16, 12, 16)
    return Crnn(width, hidden, classes, written_out), [torch.randn(batch, 1, 32, columns)]


def dien(size: str, batch: int) -> tuple[Any, list[Any]]:
    """Build a model of clicks. A batch has 256 rows for each of ``batch``, or two in a small model."""
    items, width, inner, steps, rows = (100_000, 64, 200, 50, 256) if size == "full" else (40, 8, 12, 4, 2)
    rows *= batch
    return Dien(items, width, inner), [torch.randint(items, (rows, steps)), torch.randint(items, (rows,))]


def unet_block(size: str, batch: int) -> tuple[Any, list[Any]]:
    """Compute a block of a U-Net."""
    channels, side, heads, groups = (320, 32, 8, 32) if size == "full" else (32, 8, 4, 8)
    block = UNetBlock(channels, heads, groups)
    return block, [torch.randn(batch, channels, side, side), torch.randn(batch, 4 * channels)]


def unet(size: str, batch: int) -> tuple[Any, list[Any]]:
    """Compute a whole U-Net."""
    widths, side, heads, groups = ((64, 128, 256), 32, 8, 32) if size == "full" else ((8, 16), 8, 2, 4)
    model = UNet(widths, heads, groups)
    return model, [torch.randn(batch, 3, side, side), torch.randn(batch, widths[0])]
