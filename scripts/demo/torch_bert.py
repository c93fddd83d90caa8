# SPDX-License-Identifier: Apache-2.0
"""The encoder of ``tvm_stitch.testing.workloads.bert`` as a PyTorch module with the same weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from onnx import numpy_helper
from torch.nn import functional as F

from tvm_stitch.testing.workloads.bert import BertConfig


class TorchBert(torch.nn.Module):
    """The encoder with the ONNX model's inputs and results, and PyTorch's own attention."""

    def __init__(self, proto: Any, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        for tensor in proto.graph.initializer:
            self.register_buffer(
                tensor.name.replace(".", "_"), torch.from_numpy(numpy_helper.to_array(tensor).copy())
            )

    def weight(self, *names: str) -> torch.Tensor:
        """Return a weight by the components of its name."""
        parameter: torch.Tensor = getattr(self, "_".join(names).replace(".", "_"))
        return parameter

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Compute ``x @ weight + bias``, with a weight of (in, out)."""
        return F.linear(x, self.weight(name, "weight").T, self.weight(name, "bias"))

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Compute a layer norm."""
        return F.layer_norm(
            x, (self.config.hidden,), self.weight(name, "scale"), self.weight(name, "bias"), 1e-12
        )

    def forward(self, ids: torch.Tensor, types: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the hidden state after the last layer."""
        cfg = self.config
        x = F.embedding(ids, self.weight("embeddings.words")) + F.embedding(
            types, self.weight("embeddings.types")
        )
        x = self.norm(x + self.weight("embeddings.positions"), "embeddings.norm")
        added = (1 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        shape = (cfg.batch, cfg.sequence, cfg.heads, cfg.hidden // cfg.heads)
        for i in range(cfg.layers):
            name = f"layer{i}.attention"
            q, k, v = (
                self.linear(x, f"{name}.{part}").view(shape).transpose(1, 2)
                for part in ("query", "key", "value")
            )
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=1 / math.sqrt(shape[-1]))
            mixed = mixed.transpose(1, 2).reshape(cfg.batch, cfg.sequence, cfg.hidden)
            x = self.norm(self.linear(mixed, f"{name}.output") + x, f"{name}.norm")
            name = f"layer{i}.ffn"
            inner = F.gelu(self.linear(x, f"{name}.inner"))
            x = self.norm(self.linear(inner, f"{name}.outer") + x, f"{name}.norm")
        return x
