# SPDX-License-Identifier: Apache-2.0
"""A causal model with transformers' interface, and a cache for it, which need no transformers."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

WORDS, WIDTH = 29, 8


class Cache:
    """Keys and values of a static size, as tensors that each update changes."""

    def __init__(self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor], position: torch.Tensor):
        self.layers = [SimpleNamespace(keys=k, values=v) for k, v in zip(keys, values)]
        self.position = position

    def update(self, key: torch.Tensor, value: torch.Tensor, layer: int) -> None:
        at = torch.arange(key.shape[2]) + self.position
        self.layers[layer].keys.index_copy_(2, at, key)
        self.layers[layer].values.index_copy_(2, at, value)


class Tiny(nn.Module):
    """Two layers of attention with one head, positions that are added, and scores."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.mixed = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.scores = nn.Linear(WIDTH, WORDS)
        self.config = SimpleNamespace(model_type="tiny")

    @property
    def dtype(self) -> torch.dtype:
        return self.scores.weight.dtype

    def forward(
        self, input_ids: torch.Tensor, cache: Any = None, use_cache: bool = True, logits_to_keep: int = 0
    ) -> Any:
        tokens = input_ids.shape[1]
        if cache is None:
            rows = [torch.zeros(1, 1, tokens, WIDTH, dtype=self.dtype) for _ in range(4)]
            cache = Cache(rows[:2], rows[2:], torch.tensor(0))
        at = torch.arange(tokens) + cache.position
        x = self.words(input_ids) + self.places(at)
        for number, linear in enumerate(self.mixed):
            query, key, value = linear(x)[:, None].chunk(3, -1)
            cache.update(key, value, number)
            keys, values = cache.layers[number].keys, cache.layers[number].values
            later = torch.arange(keys.shape[2]) > at[:, None]
            weights = (query @ keys.transpose(2, 3)).masked_fill(later, -torch.inf).softmax(-1)
            x = x + torch.nn.functional.silu((weights @ values)[:, 0])
        return SimpleNamespace(logits=self.scores(x[:, -logits_to_keep:]), cache=cache)
