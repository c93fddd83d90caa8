# SPDX-License-Identifier: Apache-2.0
"""A transformer encoder layer, written in PyTorch and imported into Relax (needs torch)."""

from __future__ import annotations

import math

import torch
import tvm
from torch import nn

from ...importers.torch import from_exported_program


class EncoderLayer(nn.Module):
    """Post-norm encoder layer on <batch, sequence, hidden>: eight matmuls, softmax written out.

    ``forward`` takes x and, optionally, a mask <batch, 1, 1, sequence> that is added to the scores.
    """

    def __init__(self, hidden: int, heads: int, ffn: int) -> None:
        super().__init__()
        if hidden % heads:
            raise ValueError(f"hidden ({hidden}) must be a multiple of heads ({heads})")
        self.heads = heads
        self.scale = 1.0 / math.sqrt(hidden // heads)
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)
        self.attention_norm, self.output_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def _split_heads(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, hidden = x.shape
        return x.reshape(batch, sequence, self.heads, hidden // self.heads).transpose(1, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        query, key, value = (self._split_heads(p(x)) for p in (self.query, self.key, self.value))
        scores = torch.matmul(query, key.transpose(-1, -2)) * self.scale
        if mask is not None:
            scores = scores + mask
        shifted = scores - scores.amax(dim=-1, keepdim=True)
        exponential = torch.exp(shifted)
        probability = exponential / exponential.sum(dim=-1, keepdim=True)
        context = torch.matmul(probability, value).transpose(1, 2).reshape(x.shape)
        attended = self.attention_norm(x + self.out(context))
        expanded = nn.functional.gelu(self.up(attended))
        return self.output_norm(attended + self.down(expanded))


def encoder_layer(
    batch: int,
    sequence: int,
    hidden: int,
    heads: int,
    ffn: int,
    symbolic: bool = False,
    masked: bool = False,
    seed: int = 0,
) -> tuple[tvm.IRModule, EncoderLayer, tuple[torch.Tensor, ...]]:
    """Make an encoder layer with seeded weights bound as constants.

    With ``symbolic``, batch and sequence are symbolic extents of the module. Then ``batch`` and ``sequence`` only
    size the example inputs. Both are at least 2, because torch.export takes an extent of 1 for a constant.

    Returns
    -------
    The Relax module, the torch module to compare with, and example inputs. The module's ``main`` takes x <batch,
    sequence, hidden> float32, and the mask if ``masked``.
    """
    generator = torch.Generator().manual_seed(seed)
    layer = EncoderLayer(hidden, heads, ffn).eval()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            spread = 1.0 / math.sqrt(parameter.shape[-1]) if parameter.dim() > 1 else 0.1
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
            if name.endswith("norm.weight"):
                parameter.add_(1.0)
    inputs: tuple[torch.Tensor, ...] = (torch.randn(batch, sequence, hidden, generator=generator),)
    if masked:
        hidden_away = torch.rand(batch, 1, 1, sequence, generator=generator) < 0.2
        hidden_away[..., 0] = False
        inputs = (*inputs, torch.where(hidden_away, -1e4, 0.0))
    dynamic = None
    if symbolic:
        b, s = torch.export.Dim("batch", min=1), torch.export.Dim("sequence", min=1)
        dynamic = ({0: b, 1: s}, *([{0: b, 3: s}] if masked else []))
    with torch.no_grad():
        program = torch.export.export(layer, inputs, dynamic_shapes=dynamic)
        mod = from_exported_program(program, unwrap_unit_return_tuple=True)
    # torch.export always states upper bounds, which would make TVM allocate for the largest sizes.
    mod["main"] = mod["main"].without_attr("tir_var_upper_bound")
    return mod, layer, inputs
