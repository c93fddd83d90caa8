# SPDX-License-Identifier: Apache-2.0
"""Buffers and inputs that a program changes come back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

import tvm_stitch
from tests.importers.torch.programs import compiled, imported, same
from tvm_stitch.importers.torch import from_exported_program
from tvm_stitch.importers.torch.importing.state import initial_state, view_of


class Counter(torch.nn.Module):
    """Counts its calls, averages its inputs in a batch norm, and changes an input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("fixed", torch.ones(3))
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.count += 1
        y.add_(1)
        return self.norm(x) * self.count + self.fixed + y


NAMES = ["count", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]


def expected(module: Counter, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    y = y.clone()
    result = module(x, y).detach()
    return [result, *(module.get_buffer(name).clone() for name in NAMES), y]


def test_changed_values_are_results() -> None:
    x, y, module = torch.randn(4, 3), torch.randn(3), Counter().train()
    mod = imported(module, x, y)
    assert list(mod["main"].attrs["torch_state"]) == [*NAMES, "y"]
    run = compiled(mod)
    for _ in range(2):  # every call begins with the exported values
        for got, want in zip(run(x, y), expected(Counter().train(), x, y), strict=True):
            assert same(got, want, 1e-5)


def test_state_as_inputs_advances() -> None:
    module = Counter().train()
    x, y = torch.randn(4, 3), torch.randn(3)
    program = torch.export.export(module, (x, y))
    mod = from_exported_program(program, state="inputs")
    run, state = compiled(mod), list(initial_state(program, mod).values())
    module = Counter().train()
    for _ in range(3):
        x, y = torch.randn(4, 3), torch.randn(3)
        found = run(x, y, *state)
        for got, want in zip(found, expected(module, x, y), strict=True):
            assert same(got, want, 1e-5)
        state = [torch.from_numpy(each.copy()) for each in found[1:5]]


class Cached(torch.nn.Module):
    """Attention over a cache of 6 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(6, 4))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(0, at, x)
        return torch.softmax(x @ self.keys.T, -1) @ self.keys


class Inputs(torch.nn.Module):
    """Caches of several layers as inputs, changed in two ways, and counted."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor, at: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k.index_copy_(2, at, x)
        v[:, :, at] = x + 1
        self.count += 1
        return torch.softmax(x @ k.transpose(2, 3), -1) @ v


def test_caches_are_changed_in_place() -> None:
    caches = [torch.randn(1, 2, 6, 4) for _ in range(2)]
    program = torch.export.export(Inputs(), (torch.randn(1, 2, 2, 4), torch.tensor([0, 1]), *caches))
    mod = from_exported_program(program, state="in_place")
    machine = relax.VirtualMachine(tvm_stitch.compile(mod, "llvm"), tvm.cpu())
    given = [tvm.runtime.tensor(each.numpy()) for each in caches]
    count, module = tvm.runtime.tensor(np.zeros(1, "float32")), Inputs()
    for at in ([3, 1], [5, -1 + 6], [0, 2]):
        x, positions = torch.randn(1, 2, 2, 4), torch.tensor(at)
        if at[0] == at[1]:  # one of two equal positions wins
            x[:, :, 1] = x[:, :, 0]
        step = [tvm.runtime.tensor(each.numpy()) for each in (x, positions)]
        result, count, k, v = machine["main"](*step, *given, count)
        assert same(result.numpy(), module(x, positions, *caches), 1e-5)
        for old, new, want in zip(given, (k, v), caches, strict=True):
            np.testing.assert_array_equal(old.numpy(), want.numpy())
            np.testing.assert_array_equal(new.numpy(), want.numpy())
    assert count.numpy().tolist() == [3.0]


def test_a_cache_advances() -> None:
    program = torch.export.export(Cached(), (torch.randn(1, 4), torch.tensor([0])))
    mod = from_exported_program(program, state="inputs")
    run, module, keys = compiled(mod), Cached(), initial_state(program, mod)["keys"]
    for step in range(4):
        x, at = torch.randn(1, 4), torch.tensor([step])
        result, moved = run(x, at, keys)
        assert same(result, module(x, at), 1e-5)
        keys = torch.from_numpy(moved.copy())


def test_a_buffer_that_is_not_saved_advances() -> None:
    class Steps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("step", torch.zeros(2), persistent=False)
            self.register_buffer("scale", torch.full((2,), 3.0), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.step += 1
            return x * self.scale + self.step

    program = torch.export.export(Steps(), (torch.ones(2),))
    mod = from_exported_program(program, state="inputs")
    assert [str(param.name) for param in mod["main"].params] == ["x", "b_step"]
    result, step = compiled(mod)(torch.ones(2), torch.ones(2))
    assert result.tolist() == [5.0, 5.0] and step.tolist() == [2.0, 2.0]


def test_programs_without_changes_are_viewed_as_they_are() -> None:
    program = torch.export.export(torch.nn.Linear(2, 3).eval(), (torch.randn(1, 2),))
    view: Any = view_of(program, "constants")
    assert view.order == (0,) and view.changed == ()
    assert initial_state(program, from_exported_program(program)) == {}
    with pytest.raises(ValueError, match='state must be "constants", "inputs" or "in_place"'):
        view_of(program, "both")  # type: ignore[arg-type]
