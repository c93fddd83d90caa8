# SPDX-License-Identifier: Apache-2.0
"""Guards of PyTorch are conditions on shapes, and calls that break one are errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import tvm_stitch
from tvm_stitch.importers.torch import conditions_of

AUTO = Dim.AUTO


class Called(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> Any:
        return self.function(*given)


def exported(function: Callable[..., Any], *rows: int) -> Any:
    given = tuple(torch.randn(each, 3) for each in rows)
    return torch.export.export(
        Called(function), given, dynamic_shapes=(tuple({0: AUTO} for _ in rows),), strict=False
    )


def shorter(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[: y.shape[0]] * y


def joined(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, y]) + z


@pytest.mark.parametrize(
    ("function", "rows", "wanted"),
    [
        (shorter, (9, 8), "given_1.shape[0] <= given_0.shape[0]"),
        (joined, (2, 3, 5), "given_0.shape[0] + given_1.shape[0] == given_2.shape[0]"),
        (lambda x: x[:4], (9,), "given_0.shape[0] >= 4"),
    ],
)
def test_conditions(function: Callable[..., Any], rows: tuple[int, ...], wanted: str) -> None:
    assert wanted in conditions_of(exported(function, *rows))


def test_symbols_that_are_equal_need_no_condition() -> None:
    """PyTorch gives both inputs one symbol."""
    assert conditions_of(exported(lambda x, y: x + y, 4, 4)) == ()
    windows = exported(lambda x: x.view(-1, 2, 3).sum(1).repeat(2, 1) + x, 8)
    assert conditions_of(windows) == (), "divisors are in the extents"


@pytest.mark.parametrize("path", ["program", "file", "saved"])
def test_a_call_that_breaks_a_guard_is_an_error(path: str, tmp_path: Path) -> None:
    """The kernel would read behind the memory of the first argument."""
    program = exported(shorter, 9, 8)
    torch.export.save(program, tmp_path / "model.pt2")
    model = tvm_stitch.compile(program if path == "program" else tmp_path / "model.pt2", "llvm")
    if path == "saved":
        model.save(tmp_path / "saved")
        model = tvm_stitch.load(tmp_path / "saved")
    x, y = torch.randn(5, 3), torch.randn(4, 3)
    torch.testing.assert_close(model(x, y), shorter(x, y))
    with pytest.raises(
        ValueError,
        match=r"needs given_1.shape\[0\] <= given_0.shape\[0\], but given_1 has the shape \[5, 3\]",
    ):
        model(y, x)


def test_an_extent_that_is_a_sum_of_two(tmp_path: Path) -> None:
    torch.export.save(exported(joined, 2, 3, 5), tmp_path / "model.pt2")
    model = tvm_stitch.compile(tmp_path / "model.pt2", "llvm")
    x, y = torch.randn(3, 3), torch.randn(4, 3)
    torch.testing.assert_close(model(x, y, torch.zeros(7, 3)), torch.cat([x, y]))
    with pytest.raises(ValueError, match="the model needs"):
        model(x, y, torch.zeros(8, 3))


class Twice(torch.nn.Module):
    """Rows, twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x])


def test_results_of_inputs_with_derived_extents() -> None:
    n = Dim("n", min=2, max=64)
    given, twice, more = torch.randn(8, 3), ({0: 2 * n},), ({0: n + 1},)
    model = tvm_stitch.compile(Twice(), "llvm", example_inputs=(given,), dynamic_shapes=twice)
    assert model.inputs[0].shape == ("2 * n", 3) and model.outputs[0].shape == ("n * 4", 3)
    assert model(torch.ones(6, 3)).shape == (12, 3)
    program = torch.export.export(Twice(), (given,), dynamic_shapes=more)
    model = tvm_stitch.compile(program, "llvm")
    symbol = str(model.inputs[0].shape[0]).removeprefix("1 + ")
    assert model.outputs[0].shape == (f"{symbol} * 2 + 2", 3)


def test_two_inputs_of_which_one_has_a_derived_extent() -> None:
    n = Dim("n", min=2, max=64)
    program = torch.export.export(
        Called(lambda x, y: x[1:] + y),
        (torch.randn(9, 3), torch.randn(8, 3)),
        dynamic_shapes=(({0: n + 1}, {0: n}),),
    )
    model = tvm_stitch.compile(program, "llvm")
    assert model(torch.ones(6, 3), torch.ones(5, 3)).shape == (5, 3)
    with pytest.raises(ValueError, match="is 4 in the input .*, and 5 in the input"):
        model(torch.ones(5, 3), torch.ones(5, 3))
