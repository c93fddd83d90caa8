# SPDX-License-Identifier: Apache-2.0
"""Training steps as PyTorch traces them: forward, backward and Adam of a transformer's layer and of two image blocks.

They are right on llvm and in the emulator against PyTorch in float64. The optimizer's steps over all parameters share
kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_stitch
from cuda_emulator import run_cuda
from stitch_testing.once import once
from stitch_testing.random.graphs import emulated_target
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING

torch = pytest.importorskip("torch")

from models.training import ResidualBlock, Training, TransformerLayer, training  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

LLVM, CUDA = tvm.target.Target("llvm"), emulated_target()
WIDTH, HEADS = 32, 4
TOLERANCE = 1e-5
"""Of the largest element of a result."""


class Mobile(nn.Module):
    """An inverted residual block: to more channels, depthwise with a stride, and back.

    A transposed one grows it again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(4, 12, 1, bias=False),
                nn.Conv2d(12, 12, 3, 2, 1, groups=12, bias=False),
                nn.Conv2d(12, 4, 1, bias=False),
                nn.ConvTranspose2d(4, 4, 3, 2, 1, output_padding=1, groups=2, bias=False),
            ]
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(c, track_running_stats=False) for c in (12, 12, 4, 4))

    def forward(self, x: Any, target: Any) -> Any:
        y = x
        for at, (convolution, norm) in enumerate(zip(self.convolutions, self.norms)):
            y = norm(convolution(y))
            y = F.relu(y) if at < 2 else y
        return (((x + y - target) ** 2).mean(),)


def layer() -> Training:
    torch.manual_seed(1)
    x, target = torch.randn(2, 8, WIDTH), torch.randn(2, 8, WIDTH)
    return training(TransformerLayer(WIDTH, HEADS, 64), (x, (torch.rand(2, 8, WIDTH) < 0.9).float(), target))


def block() -> Training:
    torch.manual_seed(2)
    return training(
        ResidualBlock(4, 6, 5), (torch.randn(3, 4, 8, 8), torch.softmax(torch.randn(3, 5), dim=-1))
    )


def mobile() -> Training:
    torch.manual_seed(3)
    return training(Mobile(), (torch.randn(3, 4, 8, 8), torch.randn(3, 4, 8, 8)))


class Step:
    """A training step. Tests that count its kernels and run them share the passes of each target."""

    def __init__(self, made: Training):
        self.mod, self.inputs, self.wanted = made.mod, made.inputs, made.wanted
        self.recorders = {target: Recorder() for target in (LLVM, CUDA)}
        self.passes = {t: once(pipeline(t, recorder=recorder)) for t, recorder in self.recorders.items()}


@pytest.fixture(scope="module", params=[layer, block, mobile], ids=lambda make: make.__name__)
def step(request: pytest.FixtureRequest) -> Step:
    return Step(request.param())


def compare(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    assert len(found) == len(wanted)
    for at, (got, want) in enumerate(zip(found, wanted)):
        assert got.shape == want.shape
        assert np.abs(got - want).max() < TOLERANCE * max(1e-3, np.abs(want).max()), at


def test_steps_on_llvm(step: Step) -> None:
    vm = relax.VirtualMachine(tvm_stitch.compile(step.mod, LLVM), tvm.cpu())
    compare([r.numpy() for r in vm["main"](*map(tvm.runtime.tensor, step.inputs))], step.wanted)


def test_steps_in_the_emulator(step: Step) -> None:
    done = run_cuda(
        step.mod, step.inputs, target=CUDA, relax_pipeline=step.passes[CUDA], tir_pipeline=LOWERING
    ).check()
    compare(done.outputs, step.wanted)


def test_kernels_of_steps(step: Step) -> None:
    """TVM compiles neither step for CUDA."""
    stock = count_kernels(step.mod, LLVM)
    for target, share in ((LLVM, 5), (CUDA, 7)):
        own = count_kernels(step.mod, target, step.passes[target])
        assert step.recorders[target].declined == {}
        assert own.compute_intensive <= stock.compute_intensive  # products of few rows are stitched
        assert own.memory_intensive * share <= stock.memory_intensive, own.names
