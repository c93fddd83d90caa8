# SPDX-License-Identifier: Apache-2.0
"""A decoder of transformers with caches of a static size, as a function of tokens, position and caches.

:class:`CachedStep` holds a key cache and a value cache for each layer as buffers, and builds transformers' cache object
around them. So ``torch.export`` sees the cache's updates as changes of buffers, and the import makes them inputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Literal

import torch
import tvm
from torch import nn
from tvm import relax

import tvm_stitch
from tvm_stitch.importers.torch import from_exported_program, initial_state

STATE: Literal["inputs", "in_place"] = "in_place"
"""The kind of the caches in compiled functions, an argument of ``from_exported_program``."""

LONGEST_PROMPT = 4096

Shapes = tuple[tuple[int, int], tuple[int, int]]
"""(heads, width) of the keys and of the values of a layer."""


def cache_around(keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor], position: torch.Tensor) -> Any:
    """Return a cache of transformers around tensors, which its updates change.

    Every layer keeps all positions. Layers with a sliding window mask the older ones, so results are the same.

    Args:
        keys: a tensor [batch, heads, length, width] for each layer.
        values: the same for values.
        position: the number of tokens in the cache, int64 [].
    """
    from transformers.cache_utils import Cache, StaticLayer

    layers = []
    for key, value in zip(keys, values, strict=True):
        layer = StaticLayer(key.shape[2])
        layer.keys, layer.values, layer.device = key, value, key.device
        layer.cumulative_length, layer.is_initialized = position.clone(), True
        layers.append(layer)
    return Cache(layers=layers)


class CachedStep(nn.Module):
    """A causal model with caches of a static size.

    Args:
        model: a causal model of transformers, in evaluation mode.
        length: the number of tokens that the caches hold.
        scores: the number of positions whose scores are returned, the last ones, or 0 for all.
        more: names of further arguments of the model, such as ``"encoder_hidden_states"``.
        shapes: (heads, width) of the keys and of the values of each layer. The model is asked if there are none.
        candidates: the number of best words whose scores are returned, in place of all words' scores, or 0 for all.
    """

    def __init__(
        self,
        model: nn.Module,
        length: int,
        scores: int = 1,
        more: tuple[str, ...] = (),
        shapes: Sequence[Shapes] | None = None,
        candidates: int = 0,
    ):
        super().__init__()
        self.candidates = candidates
        self.model, self.scores, self.more, self.argument = model, scores, more, cache_argument(model)
        shapes = cache_shapes(model) if shapes is None else shapes
        self.layers = len(shapes)
        for layer, (key, value) in enumerate(shapes):
            for name, (heads, width) in ((f"key_{layer}", key), (f"value_{layer}", value)):
                self.register_buffer(name, torch.zeros(1, heads, length, width, dtype=model.dtype))

    def caches(self) -> list[torch.Tensor]:
        """Return the caches [1, heads, length, width], the keys and the values of each layer in turn."""
        names = [f"{kind}_{layer}" for layer in range(self.layers) for kind in ("key", "value")]
        return [getattr(self, name) for name in names]

    def forward(
        self, ids: torch.Tensor, position: torch.Tensor, *more: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Compute one step and extend the caches.

        Args:
            ids: new tokens, int64 [1, tokens].
            position: the number of tokens in the caches, int64 [].
            more: further arguments of the model.

        Returns:
            The best next token, int64 [1, 1], the next position, int64 [], and scores [1, positions, words]. With
            candidates, the scores are [1, positions, candidates], and their words, int64, follow.
        """
        return self.computed(ids, position, self.caches(), more)

    def computed(
        self,
        ids: torch.Tensor,
        position: torch.Tensor,
        caches: Sequence[torch.Tensor],
        more: Sequence[torch.Tensor] = (),
    ) -> tuple[torch.Tensor, ...]:
        """Compute one step with caches other than the buffers, in the order of :meth:`caches`."""
        cache = cache_around(caches[0::2], caches[1::2], position)
        arguments = {self.argument: cache, **dict(zip(self.more, more, strict=True))}
        scores = self.model(input_ids=ids, use_cache=True, logits_to_keep=self.scores, **arguments).logits
        best = scores[:, -1].argmax(-1, keepdim=True)
        after = position + ids.shape[1]
        return (best, after, *scores.topk(self.candidates)) if self.candidates else (best, after, scores)


def cache_argument(model: nn.Module) -> str:
    """Return the name of a model's argument for its cache, which depends on the version of transformers."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def cache_shapes(model: Any) -> list[Shapes]:
    """Return (heads, width) of the keys and of the values of each layer."""
    with torch.no_grad():
        result = model(input_ids=torch.zeros(1, 1, dtype=torch.int64), use_cache=True)
        cache = getattr(result, cache_argument(model))
    return [
        (
            (layer.keys.shape[1], layer.keys.shape[3]),
            (layer.values.shape[1], layer.values.shape[3]),
        )
        for layer in cache.layers
    ]


def exported(step: nn.Module, tokens: int | None, length: int, *more: torch.Tensor) -> Any:
    """Return the exported program of a step.

    Args:
        step: a :class:`CachedStep`, or a module with its inputs.
        tokens: the number of new tokens, or None for a symbolic number from 2 to ``length``.
        length: the number of tokens that the caches hold.
        more: further inputs, behind tokens and position.
    """
    ids = torch.zeros(1, tokens or 3, dtype=torch.int64)
    given = (ids, torch.tensor(0), *more)
    dynamic = None
    if tokens is None:
        symbol = torch.export.Dim("tokens", min=2, max=min(length, LONGEST_PROMPT))
        dynamic = ({1: symbol}, None, *(None for _ in more))
    with torch.no_grad():
        return torch.export.export(step, given, dynamic_shapes=dynamic)


class CompiledSteps:
    """A causal model as two compiled functions: one takes a whole prompt, the other takes one token.

    Args:
        model: a causal model of transformers, in evaluation mode.
        length: the number of tokens that the caches hold.
        target: a target as ``tvm_stitch.compile`` takes it, such as ``"native"`` or ``"cuda"``.
        cuda_graph: whether the function of one token becomes a CUDA graph.
        candidates: the number of best words whose scores are returned, or 0 for all words.
    """

    def __init__(
        self, model: nn.Module, length: int, target: Any, cuda_graph: bool = False, candidates: int = 0
    ):
        self.length, step = length, CachedStep(model, length, candidates=candidates)
        self._results = 2 if candidates else 1
        self.device = tvm.cuda() if str(target).startswith("cuda") else tvm.cpu()
        self._functions: dict[bool, Any] = {}
        for single in (True, False):
            program = exported(step, 1 if single else None, length)
            mod = from_exported_program(program, state=STATE)
            config = tvm_stitch.StitchConfig(cuda_graph=cuda_graph and single)
            executable = tvm_stitch.compile(mod, target, config)
            self._functions[single] = relax.VirtualMachine(executable, self.device)["main"]
            self._empty = list(initial_state(program, mod).values())
        self.reset()

    def reset(self) -> None:
        """Forget all tokens."""
        self.position = self.moved(torch.tensor(0))
        self.caches = [self.moved(each) for each in self._empty]

    def moved(self, tensor: torch.Tensor) -> tvm.runtime.Tensor:
        """Return a copy of a tensor on the device of the functions."""
        held = tvm.runtime.from_dlpack(tensor.detach().contiguous().clone())  # TVM wants aligned memory
        return held.copyto(self.device)

    def __call__(self, ids: tvm.runtime.Tensor) -> tuple[tvm.runtime.Tensor, ...]:
        """Take tokens, and return the best next one, int64 [1, 1], and the scores [1, 1, words], on the device.

        With candidates, the scores are [1, 1, candidates], and their words, int64, follow.

        Args:
            ids: tokens on the device, int64 [1, tokens].
        """
        function = self._functions[ids.shape[1] == 1]
        best, self.position, *others = function(ids, self.position, *self.caches)
        self.caches = others[self._results :] or self.caches
        return best, *others[: self._results]
