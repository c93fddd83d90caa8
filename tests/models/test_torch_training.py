# SPDX-License-Identifier: Apache-2.0
"""Training steps as PyTorch traces them: forward, backward and Adam of a transformer's layer and of two image blocks.

Right on llvm and in the emulator against PyTorch in float64; the optimizer's steps over all parameters share kernels.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_stitch
from cuda_emulator import run_cuda
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.testing.random_graphs import emulated_target

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._decomp import core_aten_decompositions  # noqa: E402
from torch._functorch.aot_autograd import aot_export_module  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from tvm.relax.frontend.torch import from_exported_program  # noqa: E402

from tvm_stitch.torch_backward import backward_converters  # noqa: E402

LLVM, CUDA = tvm.target.Target("llvm"), emulated_target()
WIDTH, HEADS = 32, 4
TOLERANCE = 1e-5
"""Of the largest element of a result."""


class Layer(nn.Module):
    """A post-norm transformer layer, dropout with a given mask, and a mean squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x: Any, kept: Any, target: Any) -> Any:
        batch, length, _ = x.shape
        parts = (t.view(batch, length, HEADS, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        query, key, value = parts
        weights = torch.softmax(query @ key.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5, dim=-1)
        mixed = self.out((weights @ value).transpose(1, 2).reshape(x.shape))
        x = self.norms[0](x + mixed * kept / 0.9)
        x = self.norms[1](x + self.down(F.gelu(self.up(x))))
        return (((x - target) ** 2).mean(),)


class Block(nn.Module):
    """A residual block with a stride and norms over the batch, a classifier, and a cross-entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(4, 6, 3, 2, 1, bias=False),
                nn.Conv2d(6, 6, 3, 1, 1, bias=False),
                nn.Conv2d(4, 6, 1, 2),
            ]
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(6, track_running_stats=False) for _ in range(3))
        self.classify = nn.Linear(6, 5)

    def forward(self, x: Any, target: Any) -> Any:
        first, second, past = (lambda y, c=c, n=n: n(c(y)) for c, n in zip(self.convolutions, self.norms))
        y = F.relu(second(F.relu(first(x))) + past(x))
        scores = F.log_softmax(self.classify(y.mean((2, 3))), dim=-1)
        return (-(scores * target).sum(-1).mean(),)


class Mobile(nn.Module):
    """An inverted residual block: to more channels, depthwise with a stride, back; grown again by a transposed one."""

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


def adam(parameter: Any, gradient: Any, first: Any, second: Any) -> tuple[Any, Any, Any]:
    first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient * gradient
    return parameter - 0.01 * first / (second.sqrt() + 1e-8), first, second


class Step(nn.Module):
    """A loss, and parameters and moments after a step: of a traced function and where its gradients are."""

    def __init__(self, traced: Any, gradients: list[int]) -> None:
        super().__init__()
        self.traced, self.gradients = traced, gradients

    def forward(self, *given: Any) -> Any:
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
    """The module of a step, its inputs, and what it gives, in float64; ``tvm`` are TVM's kernels on llvm, ours ours."""

    mod: tvm.IRModule
    inputs: list[np.ndarray]
    wanted: list[np.ndarray]


def training(model: nn.Module, inputs: tuple[Any, ...]) -> Training:
    names = [name for name, _ in model.named_parameters()]
    traced, signature = aot_export_module(
        model, inputs, trace_joint=True, output_loss_index=0, decompositions=core_aten_decompositions()
    )
    by_name = {name: at for at, name in signature.backward_signature.gradients_to_parameters.items()}
    results = [getattr(r, "name", None) for r in list(traced.graph.nodes)[-1].args[0]]
    parameters = [p.detach() for p in model.parameters()]
    moments = [[torch.rand_like(p) for p in parameters] for _ in range(2)]
    given = (*parameters, *moments[0], *moments[1], *inputs)
    with torch.no_grad():
        program = torch.export.export(Step(traced, [results.index(by_name[n]) for n in names]), given)
    mod = from_exported_program(program, custom_convert_map=backward_converters())
    wide = copy.deepcopy(model).double()
    (loss,) = wide(*(x.double() for x in inputs))
    loss.backward()
    steps = [adam(p.detach(), p.grad, a.double(), b.double()) for p, a, b in zip(wide.parameters(), *moments)]
    wanted = [loss.detach(), *(each for step in steps for each in step)]
    return Training(mod, [x.numpy() for x in given], [w.numpy() for w in wanted])


def layer() -> Training:
    torch.manual_seed(1)
    x, target = torch.randn(2, 8, WIDTH), torch.randn(2, 8, WIDTH)
    return training(Layer(), (x, (torch.rand(2, 8, WIDTH) < 0.9).float(), target))


def block() -> Training:
    torch.manual_seed(2)
    return training(Block(), (torch.randn(3, 4, 8, 8), torch.softmax(torch.randn(3, 5), dim=-1)))


def mobile() -> Training:
    torch.manual_seed(3)
    return training(Mobile(), (torch.randn(3, 4, 8, 8), torch.randn(3, 4, 8, 8)))


@pytest.fixture(scope="module", params=[layer, block, mobile], ids=lambda make: make.__name__)
def step(request: pytest.FixtureRequest) -> Training:
    """A training step."""
    return request.param()


def compare(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    assert len(found) == len(wanted)
    for at, (got, want) in enumerate(zip(found, wanted)):
        assert got.shape == want.shape
        assert np.abs(got - want).max() < TOLERANCE * max(1e-3, np.abs(want).max()), at


def test_steps_on_llvm(step: Training) -> None:
    vm = relax.VirtualMachine(tvm_stitch.compile(step.mod, LLVM), tvm.cpu())
    compare([r.numpy() for r in vm["main"](*map(tvm.runtime.tensor, step.inputs))], step.wanted)


def test_steps_in_the_emulator(step: Training) -> None:
    done = run_cuda(step.mod, step.inputs, target=CUDA, relax_pipeline=pipeline(CUDA)).check()
    compare(done.outputs, step.wanted)


def test_kernels_of_steps(step: Training) -> None:
    """TVM compiles neither step for CUDA."""
    stock = count_kernels(step.mod, LLVM)
    for target, share in ((LLVM, 5), (CUDA, 7)):
        recorder = Recorder()
        own = count_kernels(step.mod, target, pipeline(target, recorder=recorder))
        assert recorder.declined == {}
        assert own.compute_intensive == stock.compute_intensive
        assert own.memory_intensive * share <= stock.memory_intensive, own.names
