# SPDX-License-Identifier: Apache-2.0
"""An architecture: its name, its maker, its inputs, and the modules that make its results plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

VOCABULARY = 128
PAIR: dict[str, Any] = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "decoder_start_token_id": 1,
}
"""Sizes of small models of an encoder and a decoder."""


@dataclass(frozen=True)
class Architecture:
    """A small model with random weights.

    Args:
        name: its name on the command line.
        family: its group in the table.
        maker: the package that has it, by the name of its import.
        build: makes the module, or an :class:`OnnxModel`.
        inputs: makes the inputs at a size of the symbolic dimension: tensors, or arrays for an ONNX model.
        symbolic: what its symbolic dimension is, such as ``"batch"``, or empty if it has no dynamic variant.
        axes: axes of the symbolic dimension, for each input.
        sizes: the size that is exported, and another one that the dynamic variant is called with.
        paths: the ways into Relax: ``"torch"`` and ``"onnx"``.
    """

    name: str
    family: str
    maker: str
    build: Callable[[], Any]
    inputs: Callable[[int], tuple[Any, ...]]
    symbolic: str = ""
    axes: tuple[tuple[int, ...], ...] = ()
    sizes: tuple[int, int] = (2, 3)
    paths: tuple[str, ...] = ("torch", "onnx")


@dataclass(frozen=True)
class OnnxModel:
    """An ONNX file that another tool wrote, to compare with ONNX Runtime. ``notes`` are operators that it must have."""

    proto: Any
    notes: tuple[str, ...] = field(default=())


def tensors(result: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a result, in order. Caches and texts have none."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, Mapping):
        for each in result.values():
            yield from tensors(each)
    elif isinstance(result, (tuple, list)):
        for each in result:
            yield from tensors(each)


class Tensors(nn.Module):
    """A model whose inputs have names, and whose results are a tuple of tensors.

    Args:
        model: the model.
        names: the names of its arguments. Arguments have positions if there are none.
        results: fields of its result. All of them are taken if there are none.
        fixed: further arguments, which are no tensors.
    """

    def __init__(
        self, model: nn.Module, names: tuple[str, ...] = (), results: tuple[str, ...] = (), **fixed: Any
    ):
        super().__init__()
        self.model, self.names, self.results, self.fixed = model, names, results, fixed

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the model."""
        positions = given[: len(given) - len(self.names)]
        named = dict(zip(self.names, given[len(positions) :]))
        result = self.model(*positions, **named, **self.fixed)
        if self.results:
            result = [getattr(result, each) for each in self.results]
        return tuple(tensors(result))


class Cached(nn.Module):
    """A decoder step: new tokens and the keys and values of former ones, which it extends and returns."""

    def __init__(self, model: nn.Module, layers: int):
        super().__init__()
        self.model, self.layers = model, layers

    def forward(self, tokens: torch.Tensor, *cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the model with a cache of pairs [batch, heads, length, width], one pair for each layer."""
        from transformers import DynamicCache

        past = DynamicCache()
        for layer in range(self.layers):
            past.update(cache[2 * layer], cache[2 * layer + 1], layer)
        result = self.model(tokens, past_key_values=past, use_cache=True)
        new = result.past_key_values
        pairs = [x for layer in new.layers for x in (layer.keys, layer.values)]
        return (next(tensors(result)), *pairs)


def ids(*shape: int, below: int = VOCABULARY) -> torch.Tensor:
    """Return random token numbers of int64."""
    return torch.randint(0, below, shape)


def image(batch: int, side: int = 64, channels: int = 3) -> torch.Tensor:
    """Return random images of float32 [batch, channels, side, side]."""
    return torch.randn(batch, channels, side, side)


def arrays(given: tuple[Any, ...]) -> list[np.ndarray]:
    """Return inputs as arrays."""
    return [x.contiguous().numpy() if isinstance(x, torch.Tensor) else np.asarray(x) for x in given]
