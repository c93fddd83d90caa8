# SPDX-License-Identifier: Apache-2.0
"""A BERT-like encoder of seeded weights, in Relax and in PyTorch, which gpu_matmul_check.py times."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

Weights = list[dict[str, np.ndarray]]


@dataclass(frozen=True)
class Sizes:
    """Sizes of an encoder, by default those of BERT-base."""

    layers: int = 12
    batch: int = 32
    sequence: int = 128
    hidden: int = 768
    heads: int = 12
    ffn: int = 3072

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the shape of the input and of the output."""
        return self.batch, self.sequence, self.hidden

    @property
    def operations(self) -> int:
        """Count the floating-point operations of the matrix products."""
        tokens = self.batch * self.sequence
        weights = 4 * self.hidden**2 + 2 * self.hidden * self.ffn
        return 2 * self.layers * tokens * (weights + 2 * self.sequence * self.hidden)


def weights_of(sizes: Sizes, seed: int = 0) -> Weights:
    """Random float32 weights, each layer's by name: <inputs, outputs> with biases, and normalizations."""
    rng = np.random.default_rng(seed)
    h, f = sizes.hidden, sizes.ffn
    products = {
        "query": (h, h),
        "key": (h, h),
        "value": (h, h),
        "merge": (h, h),
        "up": (h, f),
        "down": (f, h),
    }

    def draw(*shape: int, spread: float, centre: float = 0.0) -> np.ndarray:
        return (centre + spread * rng.standard_normal(shape, dtype=np.float32)).astype(np.float32)

    layers: Weights = []
    for _ in range(sizes.layers):
        weights: dict[str, np.ndarray] = {}
        for name, (inputs, outputs) in products.items():
            weights[name] = draw(inputs, outputs, spread=1 / math.sqrt(inputs))
            weights[f"{name}_bias"] = draw(outputs, spread=0.1)
        for name in ("norm1", "norm2"):
            weights[name] = draw(h, spread=0.1, centre=1.0)
            weights[f"{name}_bias"] = draw(h, spread=0.1)
        layers.append(weights)
    return layers


def relax_encoder(sizes: Sizes, weights: Weights) -> tvm.IRModule:
    """Return the encoder as a Relax module whose weights are constants."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(list(sizes.shape), "float32"))
    batch, sequence, hidden = sizes.shape
    split = (batch, sequence, sizes.heads, hidden // sizes.heads)
    emit = builder.emit

    def linear(value: Any, layer: dict[str, np.ndarray], name: str) -> Any:
        product = emit(R.matmul(value, relax.const(layer[name])))
        return emit(R.add(product, relax.const(layer[f"{name}_bias"])))

    def heads(value: Any) -> Any:
        return emit(R.permute_dims(emit(R.reshape(value, split)), [0, 2, 1, 3]))

    def norm(value: Any, layer: dict[str, np.ndarray], name: str) -> Any:
        gamma, beta = relax.const(layer[name]), relax.const(layer[f"{name}_bias"])
        return emit(R.nn.layer_norm(value, gamma, beta, axes=[-1], epsilon=1e-5))

    with builder.function("main", [x]):
        with builder.dataflow():
            value: Any = x
            for layer in weights:
                query, key, val = (heads(linear(value, layer, name)) for name in ("query", "key", "value"))
                scores = emit(R.matmul(query, emit(R.permute_dims(key, [0, 1, 3, 2]))))
                scaled = emit(R.multiply(scores, relax.const(np.float32(1 / math.sqrt(split[-1])))))
                mixed = emit(R.matmul(emit(R.nn.softmax(scaled, axis=-1)), val))
                merged = emit(R.reshape(emit(R.permute_dims(mixed, [0, 2, 1, 3])), sizes.shape))
                value = norm(emit(R.add(value, linear(merged, layer, "merge"))), layer, "norm1")
                inner = emit(R.nn.gelu(linear(value, layer, "up")))
                value = norm(emit(R.add(value, linear(inner, layer, "down"))), layer, "norm2")
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


def torch_encoder(sizes: Sizes, weights: Weights, device: str = "cuda") -> Any:
    """Return the encoder as a PyTorch module of float32 on a device."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Layer(nn.Module):
        def __init__(self, found: dict[str, np.ndarray]):
            super().__init__()
            self.heads = sizes.heads
            for name, array in found.items():
                # nn.Linear's layout: <outputs, inputs>.
                stored = np.ascontiguousarray(array.T) if array.ndim == 2 else array
                self.register_buffer(name, torch.from_numpy(stored))

        def linear(self, x: Any, name: str) -> Any:
            return F.linear(x, getattr(self, name), getattr(self, f"{name}_bias"))

        def split(self, x: Any) -> Any:
            return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

        def norm(self, x: Any, name: str) -> Any:
            return F.layer_norm(x, x.shape[-1:], getattr(self, name), getattr(self, f"{name}_bias"))

        def forward(self, x: Any) -> Any:
            query, key, value = (self.split(self.linear(x, n)) for n in ("query", "key", "value"))
            mixed = F.scaled_dot_product_attention(query, key, value)
            merged = mixed.transpose(1, 2).reshape(x.shape)
            x = self.norm(x + self.linear(merged, "merge"), "norm1")
            return self.norm(x + self.linear(F.gelu(self.linear(x, "up")), "down"), "norm2")

    return nn.Sequential(*map(Layer, weights)).to(device).eval()
