# SPDX-License-Identifier: Apache-2.0
"""Training steps as PyTorch traces them: the forward and backward pass of a model, and Adam for each parameter."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import tvm
from torch import nn
from torch._decomp import core_aten_decompositions
from torch._functorch.aot_autograd import aot_export_module
from torch.nn import functional as F

from tvm_stitch.importers.torch import from_exported_program


class TransformerLayer(nn.Module):
    """A post-norm transformer layer, dropout with a given mask, and a mean squared error."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Any, kept: Any, target: Any) -> Any:
        """Return the loss of <batch, length, width>. ``kept`` is 1 where dropout keeps an element."""
        batch, length, _ = x.shape
        parts = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        query, key, value = parts
        scale = (self.width // self.heads) ** -0.5
        weights = torch.softmax(query @ key.transpose(-1, -2) * scale, dim=-1)
        mixed = self.out((weights @ value).transpose(1, 2).reshape(x.shape))
        x = self.norms[0](x + mixed * kept / 0.9)
        x = self.norms[1](x + self.down(F.gelu(self.up(x))))
        return (((x - target) ** 2).mean(),)


class ResidualBlock(nn.Module):
    """A residual block with a stride and norms over the batch, a classifier, and a cross-entropy."""

    def __init__(self, inputs: int, channels: int, classes: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(inputs, channels, 3, 2, 1, bias=False),
                nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
                nn.Conv2d(inputs, channels, 1, 2),
            ]
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels, track_running_stats=False) for _ in range(3))
        self.classify = nn.Linear(channels, classes)

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss of images <batch, inputs, height, width> of classes with probabilities."""
        first, second, past = (lambda y, c=c, n=n: n(c(y)) for c, n in zip(self.convolutions, self.norms))
        y = F.relu(second(F.relu(first(x))) + past(x))
        scores = F.log_softmax(self.classify(y.mean((2, 3))), dim=-1)
        return (-(scores * target).sum(-1).mean(),)


def adam(parameter: Any, gradient: Any, first: Any, second: Any) -> tuple[Any, Any, Any]:
    """Return a parameter and its moments after a step."""
    first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient * gradient
    return parameter - 0.01 * first / (second.sqrt() + 1e-8), first, second


class Step(nn.Module):
    """A module that returns a loss, and parameters and moments after a step, from a traced function."""

    def __init__(self, traced: Any, gradients: list[int]) -> None:
        super().__init__()
        self.traced, self.gradients = traced, gradients

    def forward(self, *given: Any) -> Any:
        """Run a step on parameters, their first and second moments, and inputs."""
        n = len(self.gradients)
        parameters, inputs = given[:n], given[3 * n :]
        results = self.traced(*parameters, *inputs)
        steps = [
            adam(p, results[at], *m)
            for p, at, *m in zip(parameters, self.gradients, given[n:], given[2 * n :])
        ]
        return results[0], *(each for step in steps for each in step)


@dataclass(frozen=True)
class Training:
    """A step of a model, which returns its loss in a tuple. ``given`` are parameters, their moments, and inputs."""

    model: nn.Module
    step: Step
    given: tuple[Any, ...]

    @cached_property
    def mod(self) -> tvm.IRModule:
        """Import the step for TVM."""
        with torch.no_grad():
            program = torch.export.export(self.step, self.given)
        return from_exported_program(program)

    @property
    def inputs(self) -> list[np.ndarray]:
        """Return the module's inputs."""
        return [x.numpy() for x in self.given]

    @cached_property
    def wanted(self) -> list[np.ndarray]:
        """Return the step's results in float64, by PyTorch's own differentiation."""
        wide, n = copy.deepcopy(self.model).double(), len(self.step.gradients)
        moments, inputs = (self.given[n : 2 * n], self.given[2 * n : 3 * n]), self.given[3 * n :]
        (loss,) = wide(*(x.double() for x in inputs))
        loss.backward()
        steps = [
            adam(p.detach(), p.grad, a.double(), b.double()) for p, a, b in zip(wide.parameters(), *moments)
        ]
        return [w.numpy() for w in (loss.detach(), *(each for step in steps for each in step))]


def training(model: nn.Module, inputs: Sequence[Any]) -> Training:
    """Make a step of a model on these inputs, with random moments."""
    names = [name for name, _ in model.named_parameters()]
    traced, signature = aot_export_module(
        model, inputs, trace_joint=True, output_loss_index=0, decompositions=core_aten_decompositions()
    )
    assert signature.backward_signature is not None
    by_name = {name: at for at, name in signature.backward_signature.gradients_to_parameters.items()}
    results = [getattr(r, "name", None) for r in list(traced.graph.nodes)[-1].args[0]]
    parameters = [p.detach() for p in model.parameters()]
    moments = [[torch.rand_like(p) for p in parameters] for _ in range(2)]
    step = Step(traced, [results.index(by_name[name]) for name in names])
    return Training(model, step, (*parameters, *moments[0], *moments[1], *inputs))
