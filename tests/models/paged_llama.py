# SPDX-License-Identifier: Apache-2.0
"""A small Llama of ``relax.frontend.nn`` over TVM's paged cache, as mlc-llm writes such models, and its reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache, RopeMode, TIRPagedKVCache

HIDDEN, HEADS, KEY_HEADS, SIZE, INNER, WORDS, LAYERS = 128, 4, 2, 32, 192, 97, 2
THETA, EPSILON = 10000, 1e-5
CACHE_SIZES = (
    "max_batch_size",
    "max_total_seq_len",
    "prefill_chunk_size",
    "page_size",
    "support_sliding_window",
)


class _Layer(nn.Module):
    def __init__(self, number: int) -> None:
        self.number = number
        self.first, self.second = (nn.RMSNorm(HIDDEN, -1, EPSILON, bias=False) for _ in range(2))
        self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KEY_HEADS) * SIZE, bias=False)
        self.out = nn.Linear(HEADS * SIZE, HIDDEN, bias=False)
        self.gate_up = nn.Linear(HIDDEN, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x: nn.Tensor, cache: PagedKVCache) -> nn.Tensor:
        batch, tokens, _ = x.shape
        qkv = op.reshape(self.qkv(self.first(x)), (batch, tokens, HEADS + 2 * KEY_HEADS, SIZE))
        mixed = cache.attention_with_fused_qkv(self.number, qkv, HEADS, sm_scale=SIZE**-0.5)
        x = x + self.out(op.reshape(mixed, (batch, tokens, HEADS * SIZE)))
        gate, up = op.split(self.gate_up(self.second(x)), 2, axis=-1)
        return x + self.down(op.silu(gate) * up)


class _Llama(nn.Module):
    def __init__(self, target: tvm.target.Target) -> None:
        self.target = target
        self.embedding = nn.Embedding(WORDS, HIDDEN)
        self.layers = nn.ModuleList([_Layer(i) for i in range(LAYERS)])
        self.norm = nn.RMSNorm(HIDDEN, -1, EPSILON, bias=False)
        self.head = nn.Linear(HIDDEN, WORDS, bias=False)

    def _body(self, words: nn.Tensor, cache: PagedKVCache) -> nn.Tensor:
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x, cache)
        return self.norm(x)

    def prefill(self, words: nn.Tensor, cache: PagedKVCache) -> tuple[nn.Tensor, PagedKVCache]:
        def last(x: te.Tensor) -> te.Tensor:
            return te.compute((1, 1, HIDDEN), lambda i, _, k: x[i, x.shape[1] - 1, k], name="last")

        return self.head(op.tensor_expr_op(last, "last", [self._body(words, cache)])), cache

    def decode(self, words: nn.Tensor, cache: PagedKVCache) -> tuple[nn.Tensor, PagedKVCache]:
        return self.head(self._body(words, cache)), cache

    def create_cache(
        self,
        max_batch_size: tirx.Var,
        max_total_seq_len: tirx.Var,
        prefill_chunk_size: tirx.Var,
        page_size: tirx.Var,
        support_sliding_window: tirx.Var,
    ) -> PagedKVCache:
        sizes = (max_batch_size, max_total_seq_len, prefill_chunk_size, page_size, support_sliding_window)
        layers = relax.ShapeExpr([0, LAYERS])
        heads = (LAYERS, HEADS, KEY_HEADS, SIZE, SIZE, 0, 0)
        rope = (RopeMode.NORMAL, 1, THETA, {}, relax.prim_value(0), SIZE)
        return TIRPagedKVCache("mha", *sizes, layers, *heads, *rope, False, "float32", self.target)


def module(target: tvm.target.Target) -> tuple[tvm.IRModule, dict[str, tuple[int, ...]]]:
    """Return a module with ``prefill``, ``decode`` and ``create_cache``, and the shapes of its weights by name."""
    packed = {"param_mode": "packed", "effect_mode": "none"}
    cache = nn.spec.Object(PagedKVCache)
    mod, params = _Llama(target).export_tvm(
        spec={
            "prefill": {"words": nn.spec.Tensor([1, "n"], "int32"), "cache": cache, "$": packed},
            "decode": {"words": nn.spec.Tensor([1, 1], "int32"), "cache": cache, "$": packed},
            "create_cache": {
                **dict.fromkeys(CACHE_SIZES, int),
                "$": {"param_mode": "none", "effect_mode": "none"},
            },
        }
    )
    return mod, {name: tuple(int(e) for e in param.shape) for name, param in params}


def scores(weights: Mapping[str, np.ndarray], words: Sequence[int]) -> np.ndarray:
    """Return the scores of the word behind ``words``, in float64."""
    w = {name: value.astype("float64") for name, value in weights.items()}

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * w[name]

    def turned(x: np.ndarray) -> np.ndarray:
        angles = np.arange(len(words))[:, None] * THETA ** (-np.arange(0, SIZE, 2) / SIZE)
        cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
        low, high = np.split(x, 2, -1)
        return np.concatenate([low * cosine - high * sine, high * cosine + low * sine], -1)

    x = w["embedding.weight"][list(words)]
    for i in range(LAYERS):
        at = f"layers.{i}."
        qkv = (norm(x, at + "first.weight") @ w[at + "qkv.weight"].T).reshape(len(words), -1, SIZE)
        q, k, v = np.split(qkv, [HEADS, HEADS + KEY_HEADS], 1)
        k, v = (np.repeat(each, HEADS // KEY_HEADS, 1) for each in (turned(k), v))
        logits = np.einsum("qhd,khd->hqk", turned(q), k) * SIZE**-0.5
        logits[:, np.triu_indices(len(words), 1)[0], np.triu_indices(len(words), 1)[1]] = -np.inf
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", shares / shares.sum(-1, keepdims=True), v).reshape(len(words), -1)
        x = x + mixed @ w[at + "out.weight"].T
        gate, up = np.split(norm(x, at + "second.weight") @ w[at + "gate_up.weight"].T, 2, -1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[at + "down.weight"].T
    return norm(x[-1], "norm.weight") @ w["head.weight"].T
