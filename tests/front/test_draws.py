# SPDX-License-Identifier: Apache-2.0
"""Training with random numbers: PyTorch draws them, and graphs are compiled."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import nn

import tvm_stitch

pytestmark = pytest.mark.usefixtures("forgotten")


class Dropping(nn.Module):
    """A layer with dropouts and noise."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.first, self.last = nn.Linear(16, 16), nn.Dropout(0.3), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(torch.relu(self.layer(x + 0.1 * torch.randn_like(x))))
        return self.last(x) + torch.rand(16)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "tvm_stitch.front.dynamo"]


def stepped(model: nn.Module, backend: Any, sizes: tuple[int, ...]) -> list[torch.Tensor]:
    """Return losses and gradients of steps with a seed, for batches of these sizes."""
    torch._dynamo.reset()
    model, found = copy.deepcopy(model), []
    run = torch.compile(model, backend=backend)
    inputs = [torch.full((size, 5, 16), 0.25) for size in (*sizes, *sizes)]
    torch.manual_seed(7)
    for x in inputs:
        model.zero_grad()
        loss = run(x).square().mean()
        loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    return found


def test_dropouts_are_those_of_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    """A seed gives the masks that it gives by PyTorch, for other sizes of a batch too, and no graph is left."""
    torch.manual_seed(0)
    model = Dropping()
    expected = stepped(model, "aot_eager", (2, 3))
    with caplog.at_level(logging.WARNING, "tvm_stitch.front.dynamo"):
        found = stepped(model, tvm_stitch.torch_backend, (2, 3))
    assert not warnings_of(caplog)
    assert not torch.equal(found[0], found[len(found) // 2]), "each call draws anew"
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_dropouts_of_all_or_nothing(probability: float, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(16, 4), nn.Dropout(probability))
    expected = stepped(model, "aot_eager", (2,))
    with caplog.at_level(logging.WARNING, "tvm_stitch.front.dynamo"):
        found = stepped(model, tvm_stitch.torch_backend, (2,))
    assert not warnings_of(caplog)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
