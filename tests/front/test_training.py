# SPDX-License-Identifier: Apache-2.0
"""A training step by torch.compile with this package equals PyTorch's: loss, gradients, parameters and buffers."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable

import pytest
import torch
from torch import nn

import tvm_stitch

pytestmark = pytest.mark.usefixtures("forgotten")


class Convolutional(nn.Module):
    """A residual block with batch norms, which change their buffers, in front of a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8)])
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norms[0](self.first(x)))
        x = torch.relu(x + self.norms[1](self.second(x)))
        return self.head(nn.functional.max_pool2d(x, 2).mean((2, 3)))


class Tied(nn.Module):
    """A causal encoder over tokens, whose last product has the weight of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, activation="gelu")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        mask = torch.triu(torch.full((length, length), float("-inf")), 1)
        hidden = self.layer(self.table(tokens), src_mask=mask)
        return (hidden @ self.table.weight.T).flatten(0, 1)


class Gated(nn.Module):
    """Groups of channels with gates and a root mean square norm, as in recent decoders."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(12, 24), nn.Linear(12, 24), nn.Linear(24, 12)
        self.scale = nn.Parameter(torch.rand(12) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale
        return x + self.down(nn.functional.silu(self.gate(normal)) * self.up(normal))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], int]] = {
    "convolutional": (Convolutional, lambda: torch.randn(4, 3, 8, 8), 4),
    "tied": (Tied, lambda: torch.randint(0, 11, (2, 6)), 12),
    "gated": (Gated, lambda: torch.randn(7, 12), 7),
}
"""A model, its inputs, and the number of its targets."""


@pytest.mark.parametrize("name", MODELS)
def test_a_step_of_training_is_that_of_pytorch(name: str, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    build, inputs, count = MODELS[name]
    theirs = build().train()
    mine = copy.deepcopy(theirs)
    compiled = torch.compile(mine, backend=tvm_stitch.torch_backend, options={"target": "llvm"})
    for step in range(2):
        x, target = inputs(), torch.randint(0, 5, (count,))
        losses = []
        for module, run in ((theirs, theirs), (mine, compiled)):
            optimizer = torch.optim.SGD(module.parameters(), 0.1)
            loss = nn.functional.cross_entropy(run(x), target)
            optimizer.zero_grad()
            loss.backward()
            losses.append(loss.detach())
            if step == 0:
                optimizer.step()
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
    grads = [parameter.grad for parameter in theirs.parameters() if parameter.grad is not None]
    size = max(grad.abs().max().item() for grad in grads)  # those of biases in front of batch norms are 0
    for (key, one), other in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(
            one.grad, other.grad, rtol=1e-4, atol=1e-5 * size, msg=lambda m, k=key: f"{k}: {m}"
        )
    for one, other in zip(mine.state_dict().values(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert [
        r for r in caplog.records if r.name == "tvm_stitch.front.dynamo" and r.levelno >= logging.WARNING
    ] == []
