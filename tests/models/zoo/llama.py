# SPDX-License-Identifier: Apache-2.0
"""A Llama-like decoder through ``tvm.relax.frontend.nn``: packed parameters, ``prefill`` and ``decode``.

``prefill`` takes tokens of symbolic number, and ``decode`` one token behind a cache of symbolic length.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op, spec

from .spec import Arrays, Draw, Made, normal, spread, tokens

WORDS, WIDTH, HEADS, SIZE, INNER = 40, 32, 4, 8, 48
EPSILON = 1e-5


Three = tuple[Tensor, Tensor, Tensor]


class Attention(nn.Module):
    def __init__(self) -> None:
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(
        self, x: Tensor, turn: Tensor, keys: Tensor | None, values: Tensor | None, mask: Tensor | None
    ) -> Three:
        """``turn`` <length, 2, half of a head>: cosines and sines by position.

        The caches are <1, heads, length, size>.
        """
        _, length, _ = x.shape
        parts = op.permute_dims(op.reshape(self.qkv(x), (1, length, 3, HEADS, SIZE)), [2, 0, 3, 1, 4])
        query, key, value = (op.squeeze(each, 0) for each in op.split(parts, 3, 0))
        cosine, sine = (op.reshape(each, (1, 1, length, SIZE // 2)) for each in op.split(turn, 2, 1))
        query, key = _turned(query, cosine, sine), _turned(key, cosine, sine)
        if keys is not None and values is not None:
            key, value = op.concat([keys, key], 2), op.concat([values, value], 2)
        scores = op.matmul(query, op.permute_dims(key, [0, 1, 3, 2])) / SIZE**0.5
        if mask is not None:
            scores = scores + mask
        mixed = op.permute_dims(op.matmul(op.softmax(scores, -1), value), [0, 2, 1, 3])
        return self.out(op.reshape(mixed, (1, length, WIDTH))), key, value


def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions: the two halves of each head are turned."""
    first, second = op.split(x, 2, -1)
    return op.concat([first * cosine - second * sine, second * cosine + first * sine], -1)


class Llama(nn.Module):
    def __init__(self) -> None:
        self.words = nn.Embedding(WORDS, WIDTH)
        self.attention = Attention()
        self.before, self.behind, self.last = (nn.RMSNorm(WIDTH, -1, EPSILON, bias=False) for _ in range(3))
        self.gate_up = nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def layer(
        self, words: Tensor, turn: Tensor, keys: Tensor | None, values: Tensor | None, mask: Tensor | None
    ) -> Three:
        x = self.words(words)
        mixed, key, value = self.attention(self.before(x), turn, keys, values, mask)
        x = x + mixed
        gate, up = op.split(self.gate_up(self.behind(x)), 2, -1)
        return self.last(x + self.down(op.silu(gate) * up)), key, value

    def prefill(self, words: Tensor, turn: Tensor, mask: Tensor) -> Three:
        x, key, value = self.layer(words, turn, None, None, mask)
        return self.head(x), key, value

    def decode(self, words: Tensor, turn: Tensor, keys: Tensor, values: Tensor) -> Three:
        x, key, value = self.layer(words, turn, keys, values, None)
        return self.head(x), key, value


def _module() -> tuple[tvm.IRModule, dict[str, np.ndarray]]:
    cache = spec.Tensor([1, HEADS, "past", SIZE], "float32")
    methods = {
        "prefill": {
            "words": spec.Tensor([1, "length"], "int32"),
            "turn": spec.Tensor(["length", 2, SIZE // 2], "float32"),
            "mask": spec.Tensor(["length", "length"], "float32"),
            "$": {"param_mode": "packed", "effect_mode": "none"},
        },
        "decode": {
            "words": spec.Tensor([1, 1], "int32"),
            "turn": spec.Tensor([1, 2, SIZE // 2], "float32"),
            "keys": cache,
            "values": cache,
            "$": {"param_mode": "packed", "effect_mode": "none"},
        },
    }
    mod, params = Llama().export_tvm(spec=methods)
    weights = {
        name: normal(*map(int, p.shape), seed=i) / (4 if len(p.shape) == 2 else 1)
        for i, (name, p) in enumerate(params)
    }
    return mod, weights


def _rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * weight


def _reference(weights: dict[str, np.ndarray], arrays: Sequence[np.ndarray]) -> Arrays:
    """Compute the layer in NumPy. The arrays are words, turn, and the mask or the two caches."""
    w = {name: value.astype("float64") for name, value in weights.items()}
    words, turn, *rest = (x.astype("float64") if x.dtype.kind == "f" else x for x in arrays)
    x = w["words.weight"][words]
    length = x.shape[1]
    parts = (_rms(x, w["before.weight"]) @ w["attention.qkv.weight"].T).reshape(1, length, 3, HEADS, SIZE)
    query, key, value = parts.transpose(2, 0, 3, 1, 4)

    def turned(y: np.ndarray) -> np.ndarray:
        first, second = np.split(y, 2, -1)
        cosine, sine = turn[:, 0], turn[:, 1]
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)

    query, key = turned(query), turned(key)
    if len(rest) == 2:
        key, value = np.concatenate([rest[0], key], 2), np.concatenate([rest[1], value], 2)
    scores = query @ key.swapaxes(-1, -2) / SIZE**0.5 + (rest[0] if len(rest) == 1 else 0)
    weight = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (weight / weight.sum(-1, keepdims=True)) @ value
    x = x + mixed.transpose(0, 2, 1, 3).reshape(1, length, WIDTH) @ w["attention.out.weight"].T
    gate, up = np.split(_rms(x, w["behind.weight"]) @ w["gate_up.weight"].T, 2, -1)
    x = _rms(x + (gate / (1 + np.exp(-gate)) * up) @ w["down.weight"].T, w["last.weight"])
    return [x @ w["head.weight"].T, key, value]


def _made(func: str, draw_own: Draw, sizes: tuple[tuple[int, ...], ...]) -> Made:
    mod, weights = _module()
    packed = list(weights.values())

    def draw(*size: int) -> Arrays:
        return [*draw_own(*size), *packed]

    def reference(arrays: Sequence[np.ndarray]) -> Arrays:
        return _reference(weights, arrays[: -len(packed)])

    return Made(mod, draw, reference, sizes, func, packed=len(packed))


def llama_prefill() -> Made:
    def draw(length: int) -> Arrays:
        mask = np.triu(np.full((length, length), -1e9, "float32"), 1)
        return [tokens(WORDS, 1, length).astype("int32"), normal(length, 2, SIZE // 2), mask]

    return _made("prefill", draw, ((7,), *spread(range(1, 41))))


def llama_decode() -> Made:
    def draw(past: int) -> Arrays:
        caches = [normal(1, HEADS, past, SIZE, seed=i) for i in range(2)]
        return [tokens(WORDS, 1, 1).astype("int32"), normal(1, 2, SIZE // 2), *caches]

    return _made("decode", draw, ((7,), *spread(range(41))))
