# SPDX-License-Identifier: Apache-2.0
"""torch.compile with this package: inference, training, changed weights and buffers, shapes, graphs left to PyTorch."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch

import tvm_stitch
from tvm_stitch.front import dynamo

pytestmark = pytest.mark.usefixtures("forgotten")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect what graphs become, None for those that PyTorch runs."""
    found: list[Any] = []
    compiled = dynamo._Graph._compiled

    def noted(self: Any, args: Any) -> Any:
        found.append(compiled(self, args))
        return found[-1]

    monkeypatch.setattr(dynamo._Graph, "_compiled", noted)
    return found


def by_us(module: Any, **options: Any) -> Any:
    return torch.compile(module, backend=tvm_stitch.torch_backend, options={"target": "llvm", **options})


def network() -> torch.nn.Module:
    layers = [torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 4)]
    return torch.nn.Sequential(*layers)


@torch.no_grad()
def test_inference_with_weights_as_constants(made: list[Any]) -> None:
    model = network().eval()
    compiled = by_us(model, constants=True)
    for rows in (3, 3, 5):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(compiled(x), model(x))
    assert [len(each.given) for each in made] == [1, 1]  # the input alone, for each number of rows
    model[0].weight.mul_(2)
    torch.testing.assert_close(compiled(x), model(x))
    assert None not in made


@torch.no_grad()
@pytest.mark.parametrize("traced", [True, False])
def test_recurrent_layers_that_pytorch_traces(traced: bool, made: list[Any]) -> None:
    """PyTorch runs a recurrent layer itself, unless its configuration says otherwise."""
    torch.manual_seed(0)
    model, x = torch.nn.GRU(4, 8, batch_first=True).eval(), torch.randn(2, 5, 4)
    with torch._dynamo.config.patch(allow_rnn=traced):
        found = by_us(model)(x)[0]
    torch.testing.assert_close(found, model(x)[0])
    assert len(made) == traced and None not in made


@torch.no_grad()
def test_weights_written_by_their_data_are_seen(made: list[Any]) -> None:
    """PyTorch does not count such writes, so weights are arguments unless the user says otherwise."""
    model = network().eval()
    compiled = by_us(model)
    for _ in range(3):
        x = torch.randn(3, 16)
        torch.testing.assert_close(compiled(x), model(x))
        model[0].weight.data.mul_(2)
    assert len(made) == 1 and None not in made


def changed_by_its_data(model: Any) -> None:
    model[0].weight.data.copy_(torch.ones_like(model[0].weight))


def changed_by_a_state(model: Any) -> None:
    model.load_state_dict({name: value + 0.5 for name, value in model.state_dict().items()})


def changed_by_a_step(model: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.enable_grad():
        model(torch.ones(1, 3, 6, 6)).square().mean().backward()
    optimizer.step()


def changed_by_another_parameter(model: Any) -> None:
    model[0].weight = torch.nn.Parameter(torch.full_like(model[0].weight, 0.25))


@torch.no_grad()
def test_changed_weights_of_convolutions_are_seen(made: list[Any]) -> None:
    """Their template packs weights, in each call."""
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 1)]
    model, x = torch.nn.Sequential(*layers).eval(), torch.randn(2, 3, 6, 6)
    compiled = by_us(model)
    for change in (
        lambda _model: None,
        changed_by_its_data,
        changed_by_a_state,
        changed_by_a_step,
        changed_by_another_parameter,
    ):
        change(model)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert None not in made


@torch.no_grad()
def test_weights_that_always_change_are_arguments(made: list[Any]) -> None:
    model = torch.nn.Linear(4, 4)
    compiled = by_us(model, constants=True)
    for _ in range(9):
        x = torch.randn(2, 4)
        torch.testing.assert_close(compiled(x), model(x))
        model.weight.add_(1)
    assert len(made) == dynamo._CHANGES + 1 and None not in made


@torch.no_grad()
def test_buffers_that_change(made: list[Any]) -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x * self.count

    mine, theirs = Counter(), Counter()
    compiled = by_us(mine, constants=True)
    for _ in range(9):
        x = torch.randn(2)
        torch.testing.assert_close(compiled(x), theirs(x))
        torch.testing.assert_close(mine.count, theirs.count)
    assert len(made) == 1 and None not in made


def test_training_steps_equal_those_of_pytorch(made: list[Any]) -> None:
    theirs = torch.nn.Sequential(network(), torch.nn.BatchNorm1d(4)).train()
    mine = copy.deepcopy(theirs)
    compiled = by_us(mine)
    for _ in range(3):
        x = torch.randn(6, 16)
        for module, run in ((theirs, theirs), (mine, compiled)):
            optimizer = torch.optim.SGD(module.parameters(), 0.1)
            run(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    for one, other in zip(mine.state_dict().values(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert len(made) == 2 and None not in made  # forward and backward


@torch.no_grad()
def test_graph_breaks_and_results_of_several_kinds(made: list[Any]) -> None:
    class Broken(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
            y = torch.relu(x)
            torch._dynamo.graph_break()
            return y + 1, x, x.shape[0]

    x = torch.randn(3, 4)
    found, same, rows = by_us(Broken())(x)
    torch.testing.assert_close(found, torch.relu(x) + 1)
    assert same is x and rows == 3 and made and None not in made


@torch.no_grad()
def test_a_graph_that_is_not_imported_is_run_by_pytorch(
    made: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    def sampled(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.qr(x)[1].abs()

    x = torch.randn(3, 3)
    with caplog.at_level(logging.WARNING):
        found = by_us(sampled)(x)
    torch.testing.assert_close(found, sampled(x))
    assert made == [None] and "PyTorch runs a graph of" in caplog.text and "qr" in caplog.text


@torch.no_grad()
def test_options_are_those_of_the_configuration() -> None:
    with pytest.raises(Exception, match="unknown"):
        by_us(network(), unknown=1)(torch.randn(1, 16))
