# SPDX-License-Identifier: Apache-2.0
"""Recurrent cells whose steps a model writes out are one kernel, and right against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

from stitch_testing.random.graphs import emulated_target
from tests.choices import CHOICES
from tests.graph.helpers import LLVM, STRICT, emulated, on_llvm
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.loops.written_out_layers import WrittenOutLayers

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tvm_stitch.importers.torch import from_exported_program  # noqa: E402


class Cell(nn.Module):
    """Steps of a cell that is written out, over inputs [batch, steps, width]."""

    def __init__(self, width: int, gates: int, hidden: int = 0, bias: bool = True):
        super().__init__()
        hidden = hidden or width
        self.hidden = hidden
        self.of_input = nn.Linear(width, gates * hidden)
        self.of_state = nn.Linear(hidden, gates * hidden, bias=bias)

    def first(self, x: Any) -> Any:
        return torch.zeros(x.shape[0], self.hidden, dtype=x.dtype)


class Augru(Cell):
    """A GRU whose update gate is opened by a score of attention. The inputs of all steps are multiplied before."""

    def forward(self, x: Any, scores: Any) -> Any:
        projected, h = self.of_input(x), self.first(x)
        for step in range(x.shape[1]):
            reset_x, update_x, new_x = projected[:, step].chunk(3, -1)
            reset_h, update_h, new_h = self.of_state(h).chunk(3, -1)
            update = torch.sigmoid(update_x + update_h) * scores[:, step : step + 1]
            new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
            h = h + update * (new - h)
        return h


class Gru(Cell):
    """A GRU that multiplies the input in each step, and returns all states."""

    def forward(self, x: Any) -> Any:
        h, states = self.first(x), []
        for step in range(x.shape[1]):
            reset_x, update_x, new_x = self.of_input(x[:, step]).chunk(3, -1)
            reset_h, update_h, new_h = self.of_state(h).chunk(3, -1)
            new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
            update = torch.sigmoid(update_x + update_h)
            h = (1 - update) * h + update * new
            states.append(h)
        return torch.stack(states, 1)


class Lstm(Cell):
    """An LSTM from the last step to the first, of which all states and the last ones are returned."""

    def forward(self, x: Any) -> Any:
        h, c, states = self.first(x), self.first(x) + 0.5, []
        for step in reversed(range(x.shape[1])):
            i, f, g, o = (self.of_input(x[:, step]) + self.of_state(h)).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        return torch.stack(states[::-1]), h, c


class Leaky(Cell):
    """A cell without a name: a leaky state with a scale for each unit, whose states are read one by one."""

    def __init__(self, width: int, gates: int, hidden: int):
        super().__init__(width, gates, hidden, bias=False)
        self.scale = nn.Parameter(torch.rand(hidden))

    def forward(self, x: Any) -> Any:
        h, total = self.first(x) + 0.1, 0.0
        for step in range(x.shape[1]):
            h = 0.9 * h + torch.relu(self.of_input(x[:, step]) - self.of_state(h) * self.scale) * 0.1
            total = total + h.sum(-1) * step
        return total, h


def seeded(model: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    return model.eval()


CASES = {
    "attention-gated": (Augru(9, 3), [(3, 8, 9), (3, 8)]),
    "gru": (Gru(16, 3), [(2, 9, 16)]),
    "lstm": (Lstm(7, 4, 12), [(2, 8, 7)]),
    "no name": (Leaky(5, 1, 20), [(4, 9, 5)]),
}


def case(name: str) -> tuple[tvm.IRModule, list[np.ndarray], list[np.ndarray]]:
    """Return a module, its inputs, and what PyTorch computes in float64."""
    model, shapes = CASES[name]
    model = seeded(model).float()
    torch.manual_seed(2)
    given = [torch.randn(*shape) for shape in shapes]
    mod = from_exported_program(torch.export.export(model, tuple(given)))
    wanted = model.double()(*[each.double() for each in given])
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    return mod, [each.numpy() for each in given], [each.detach().numpy() for each in wanted]


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize("name", CASES)
def test_states_are_right(run: Any, name: str) -> None:
    mod, given, wanted = case(name)
    for got, right in zip(run(mod, *given), wanted, strict=True):
        np.testing.assert_allclose(got, right, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("target", [LLVM, emulated_target()], ids=["llvm", "cuda"])
@pytest.mark.parametrize("name", CASES)
def test_all_steps_are_one_kernel(target: tvm.target.Target, name: str) -> None:
    mod, _, _ = case(name)
    counted = count_kernels(mod, target, pipeline(target))
    assert sum(each.startswith("cell_kernel") for each in counted.names) == 1, counted.names
    assert counted.total <= 5, counted.names


class Watched(Gru):
    """A GRU whose gate is returned too."""

    def forward(self, x: Any) -> Any:
        h, gates = self.first(x), 0.0
        for step in range(x.shape[1]):
            update = torch.sigmoid(self.of_input(x[:, step]) + self.of_state(h))
            gates = gates + update
            h = update * h
        return h, gates


class Uneven(Cell):
    """A cell of which every second step is another one."""

    def forward(self, x: Any) -> Any:
        h = self.first(x)
        for step in range(x.shape[1]):
            total = self.of_input(x[:, step]) + self.of_state(h)
            h = torch.tanh(total) if step % 2 else torch.sigmoid(total)
        return h


class Normed(Cell):
    """A cell that is no function of single units."""

    def forward(self, x: Any) -> Any:
        h = self.first(x)
        for step in range(x.shape[1]):
            h = torch.softmax(self.of_input(x[:, step]) + self.of_state(h), -1)
        return h


@pytest.mark.parametrize("kind", [Watched, Uneven, Normed])
def test_other_steps_stay_as_they_are(kind: Any) -> None:
    model = seeded(kind(6, 1)).float()
    x = torch.randn(2, 6, 6)
    mod = from_exported_program(torch.export.export(model, (x,)))
    assert WrittenOutLayers(LLVM, STRICT)(mod).same_as(mod) or not kernels(mod)
    wanted = model.double()(x.double())
    for got, right in zip(
        on_llvm(mod, x.numpy()), wanted if isinstance(wanted, tuple) else [wanted], strict=True
    ):
        np.testing.assert_allclose(got, right.detach().numpy(), rtol=2e-5, atol=2e-6)


def kernels(mod: tvm.IRModule) -> list[str]:
    return [name for name in count_kernels(mod, LLVM, pipeline(LLVM)).names if name.startswith("cell_kernel")]


def test_few_steps_stay_as_they_are() -> None:
    most = CHOICES.cpu_written_steps
    for steps in (most - 1, most):
        x = torch.randn(2, steps, 16)
        mod = from_exported_program(torch.export.export(seeded(Gru(16, 3)).float(), (x,)))
        assert len(kernels(mod)) == (steps == most)


def test_a_layer_on_another_layer_and_a_symbolic_batch() -> None:
    """Both layers are one kernel each, and the second one reads the states of the first."""
    model = seeded(nn.Sequential(Gru(8, 3), Gru(8, 3))).float()
    x = torch.randn(3, 5, 8)
    batch = torch.export.Dim("batch", min=2, max=64)
    mod = from_exported_program(torch.export.export(model, (x,), dynamic_shapes=({0: batch},)))
    assert len(kernels(mod)) == 2
    (got,) = on_llvm(mod, x.numpy())
    np.testing.assert_allclose(got, model.double()(x.double()).detach().numpy(), rtol=2e-5, atol=2e-6)


def test_a_half_type_on_a_gpu() -> None:
    model = seeded(Augru(9, 3)).half()
    torch.manual_seed(3)
    given = [torch.randn(8, 4, 9).half(), torch.softmax(torch.randn(8, 4), -1).half()]
    mod = from_exported_program(torch.export.export(model, tuple(given)))
    (got,) = emulated(mod, *[each.numpy() for each in given])
    wanted = model.double()(*[each.double() for each in given]).detach().numpy()
    own = seeded(Augru(9, 3)).half()(*given).double().detach().numpy()
    assert abs(got - wanted).mean() <= 1.2 * abs(own - wanted).mean()
