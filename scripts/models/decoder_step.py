# SPDX-License-Identifier: Apache-2.0
"""One step of a Llama-like decoder over a cache of known length, as Relax and as a PyTorch function.

Both take the same parameters in the same order, and write the keys and values of new tokens into the cache. Weights
are floats, or 4-bit integers in words of 32 bits with a scale for each 32 of them, as mlc-llm writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax import op

from tvm_stitch.relax.in_place.updates import with_results_in_place

GROUP = 32
"""Weights of one scale."""


@dataclass(frozen=True)
class Decoder:
    """The sizes of a decoder, and the number of tokens of a step."""

    layers: int = 16
    hidden: int = 2048
    heads: int = 32
    key_heads: int = 8
    inner: int = 8192
    cache: int = 512
    words: int = 32000
    tokens: int = 1
    dtype: str = "bfloat16"
    bits: int = 0

    @property
    def size(self) -> int:
        """Elements of a head."""
        return self.hidden // self.heads

    def parameters(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Return the names, shapes and types of the parameters."""
        turn = (1, self.tokens, 1, self.size // 2)
        found = [
            ("x", (1, self.tokens, self.hidden), self.dtype),
            ("cosine", turn, "float32"),
            ("sine", turn, "float32"),
            ("at", (self.tokens,), "int64"),
        ]
        caches = (1, self.key_heads, self.cache, self.size)
        for i in range(self.layers):
            found += [(f"norm{i}", (self.hidden,), self.dtype)]
            found += self._weight(f"qkv{i}", (self.heads + 2 * self.key_heads) * self.size, self.hidden)
            found += [(f"keys{i}", caches, self.dtype), (f"values{i}", caches, self.dtype)]
            found += self._weight(f"out{i}", self.hidden, self.hidden)
            found += [(f"second{i}", (self.hidden,), self.dtype)]
            found += self._weight(f"gate_up{i}", 2 * self.inner, self.hidden)
            found += self._weight(f"down{i}", self.hidden, self.inner)
        return [*found, ("last", (self.hidden,), self.dtype), *self._weight("head", self.words, self.hidden)]

    def _weight(self, name: str, rows: int, columns: int) -> list[tuple[str, tuple[int, ...], str]]:
        if not self.bits:
            return [(name, (rows, columns), self.dtype)]
        scales = (f"{name}_scale", (rows, columns // GROUP), self.dtype)
        return [(f"{name}_words", (rows, columns * self.bits // 32), "uint32"), scales]


def drawn(decoder: Decoder, random: np.random.Generator) -> list[np.ndarray]:
    """Return random parameters. The step writes the last tokens of the cache, and weights keep activations in size."""
    found: list[np.ndarray] = []
    for name, shape, dtype in decoder.parameters():
        if name == "at":
            found.append(np.arange(decoder.cache - decoder.tokens, decoder.cache))
        elif dtype == "uint32":
            found.append(random.integers(0, 2**32, shape, dtype=np.uint32))
        else:
            values: np.ndarray = random.standard_normal(shape, dtype=np.float32)
            if name.endswith("_scale"):
                values = np.abs(values) * (0.003 if decoder.bits == 4 else 2e-4)
            elif len(shape) == 2:
                values *= shape[1] ** -0.5
            found.append(values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype))
    return found


def dequantized(words: te.Tensor, scales: te.Tensor, bits: int) -> te.Tensor:
    """Return the weights that words and scales stand for."""
    each, zero, dtype = 32 // bits, 2 ** (bits - 1) - 1, scales.dtype

    def weight(n: tirx.Var, k: tirx.Var) -> tirx.PrimExpr:
        shift = (k % each).astype("uint32") * tirx.const(bits, "uint32")
        integer = (words[n, k // each] >> shift) & tirx.const(2**bits - 1, "uint32")
        return (integer.astype(dtype) - tirx.const(zero, dtype)) * scales[n, k // GROUP]

    return te.compute((words.shape[0], words.shape[1] * each), weight, "dequantize")


def as_relax(decoder: Decoder) -> tvm.IRModule:
    """Return a module whose ``main`` returns the scores of all words, and the caches, which it changes in place."""
    params = [relax.Var(name, relax.TensorType(shape, dtype)) for name, shape, dtype in decoder.parameters()]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            results = _Writer(decoder, builder, iter(params)).results()
            result = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(result)
    caches = [i for i, (name, _, _) in enumerate(decoder.parameters()) if name.startswith(("keys", "values"))]
    return with_results_in_place(builder.get(), {position: 1 + i for i, position in enumerate(caches)})


class _Writer:
    def __init__(self, decoder: Decoder, builder: relax.BlockBuilder, params: Any):
        self.decoder, self.builder, self.params, self.emit = decoder, builder, params, builder.emit

    def results(self) -> list[relax.Expr]:
        d = self.decoder
        x, self.cosine, self.sine, at = (next(self.params) for _ in range(4))
        self.at = self.emit(op.expand_dims(at, [-1]))
        caches: list[relax.Expr] = []
        for _ in range(d.layers):
            mixed, keys, values = self._attention(self._linear(self._norm(x)))
            caches += [keys, values]
            x = self.emit(op.add(x, self._linear(mixed)))
            halves = self.emit(op.split(self._linear(self._norm(x)), 2, axis=-1))
            gated = self.emit(op.multiply(op.nn.silu(halves[0]), halves[1]))
            x = self.emit(op.add(x, self._linear(gated)))
        return [self.emit(op.astype(self._linear(self._norm(x)), "float32")), *caches]

    def _norm(self, x: relax.Expr) -> relax.Expr:
        return self.emit(op.nn.rms_norm(x, next(self.params), axes=[-1], epsilon=1e-5))

    def _linear(self, x: relax.Expr) -> relax.Expr:
        weight = next(self.params)
        if self.decoder.bits:
            made = dequantized, weight, next(self.params), self.decoder.bits
            weight = self.builder.emit_te(*made, primfunc_name_hint="dequantize")
        return self.emit(op.matmul(x, op.permute_dims(weight)))

    def _attention(self, qkv: relax.Expr) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
        d, emit = self.decoder, self.emit
        ends = [d.heads * d.size, (d.heads + d.key_heads) * d.size]
        parts = emit(op.split(qkv, ends, axis=-1))
        query, key = self._turned(parts[0], d.heads), self._turned(parts[1], d.key_heads)
        value = emit(op.permute_dims(op.reshape(parts[2], (1, d.tokens, d.key_heads, d.size)), [0, 2, 1, 3]))
        keys, values = self._written(key), self._written(value)
        grouped = (d.key_heads, d.heads // d.key_heads * d.tokens, d.size)
        flat_keys, flat_values = (
            emit(op.reshape(each, (d.key_heads, d.cache, d.size))) for each in (keys, values)
        )
        scores = emit(op.matmul(emit(op.reshape(query, grouped)), op.permute_dims(flat_keys, [0, 2, 1])))
        scaled = emit(op.multiply(op.astype(scores, "float32"), relax.const(d.size**-0.5, "float32")))
        mixed = emit(op.matmul(op.astype(op.nn.softmax(scaled, -1), d.dtype), flat_values))
        return emit(op.reshape(mixed, (1, d.tokens, d.hidden))), keys, values

    def _written(self, new: relax.Expr) -> relax.Expr:
        """Return the next cache with rows at the step's positions, as PyTorch's ``index_copy`` is imported."""
        front, back = [2, 0, 1, 3], [1, 2, 0, 3]
        moved, rows = (self.emit(op.permute_dims(each, front)) for each in (next(self.params), new))
        return self.emit(op.permute_dims(self.emit(op.scatter_nd(moved, self.at, rows)), back))

    def _turned(self, x: relax.Expr, heads: int) -> relax.Expr:
        d, emit = self.decoder, self.emit
        wide = emit(op.astype(op.reshape(x, (1, d.tokens, heads, d.size)), "float32"))
        halves = emit(op.split(wide, 2, axis=-1))
        first, second = halves[0], halves[1]
        turned = [
            op.subtract(op.multiply(first, self.cosine), op.multiply(second, self.sine)),
            op.add(op.multiply(second, self.cosine), op.multiply(first, self.sine)),
        ]
        return emit(op.permute_dims(op.astype(op.concat(turned, axis=3), d.dtype), [0, 2, 1, 3]))


def in_torch(decoder: Decoder) -> Callable[..., Any]:
    """Return the step as a function of PyTorch tensors. It returns the scores, and changes the caches."""
    import torch
    from torch.nn import functional as F

    d = decoder

    def step(*params: torch.Tensor) -> torch.Tensor:
        waiting = iter(params)
        x, cosine, sine, at = (next(waiting) for _ in range(4))

        def norm(y: torch.Tensor) -> torch.Tensor:
            return F.rms_norm(y, (d.hidden,), next(waiting), 1e-5)

        def linear(y: torch.Tensor) -> torch.Tensor:
            weight = next(waiting)
            if d.bits:
                scales = next(waiting)
                shifts = torch.arange(32 // d.bits, device=weight.device, dtype=torch.int32) * d.bits
                integers = (weight.view(torch.int32)[:, :, None] >> shifts) & (2**d.bits - 1)
                zero = 2 ** (d.bits - 1) - 1
                floats = integers.reshape(scales.shape[0], -1, GROUP).to(scales.dtype) - zero
                weight = (floats * scales[:, :, None]).reshape(scales.shape[0], -1)
            return y @ weight.T

        def turned(y: torch.Tensor, heads: int) -> torch.Tensor:
            first, second = y.reshape(1, d.tokens, heads, d.size).float().chunk(2, -1)
            both = torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)
            return both.to(y.dtype).transpose(1, 2)

        for _ in range(d.layers):
            ends = [d.heads * d.size, d.key_heads * d.size, d.key_heads * d.size]
            query, key, value = linear(norm(x)).split(ends, -1)
            value = value.reshape(1, d.tokens, d.key_heads, d.size).transpose(1, 2)
            keys = next(waiting).index_copy_(2, at, turned(key, d.key_heads))
            values = next(waiting).index_copy_(2, at, value)
            grouped = turned(query, d.heads).reshape(d.key_heads, -1, d.size)
            scores = (grouped @ keys[0].transpose(1, 2)).float() * d.size**-0.5
            mixed = (scores.softmax(-1).to(x.dtype) @ values[0]).reshape(1, d.tokens, d.hidden)
            x = x + linear(mixed)
            gate, up = linear(norm(x)).chunk(2, -1)
            x = x + linear(F.silu(gate) * up)
        return linear(norm(x)).float()

    return step
