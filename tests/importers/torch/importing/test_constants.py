# SPDX-License-Identifier: Apache-2.0
"""Arguments and results that are no tensors keep the values they were exported with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.importers.torch.programs import compiled
from tvm_stitch.importers.torch import from_exported_program
from tvm_stitch.importers.torch.importing.constants import (
    constant_inputs,
    constant_results,
    integer_results,
    without_constants,
)
from tvm_stitch.importers.torch.importing.unsupported import Unsupported


class Scaled(torch.nn.Module):
    """Takes numbers, flags, words and None, and returns some."""

    def forward(
        self,
        x: torch.Tensor,
        scale: float,
        mask: torch.Tensor | None,
        y: torch.Tensor,
        *,
        mode: str,
        flag: bool = False,
    ) -> Any:
        y.add_(1)
        x = x * scale if mask is None else x + mask
        return x + (y if mode == "sum" else 0), None, {"count": 3, "mean": x.mean()}, flag


def program() -> Any:
    arguments = torch.ones(2, 3), 2.0, None, torch.zeros(2, 3)
    return torch.export.export(Scaled(), arguments, {"mode": "sum", "flag": True}, strict=False)


def test_they_are_numbered_among_all() -> None:
    inputs, results = constant_inputs(program()), constant_results(program())
    assert inputs == {1: ("scale", 2.0), 2: ("mask", None), 4: ("mode", "sum"), 5: ("flag", True)}
    assert results == {1: None, 2: 3, 4: True}


def test_the_function_takes_and_returns_tensors_only() -> None:
    mod = from_exported_program(program())
    assert [param.name for param in mod["main"].params] == ["x", "y"]
    assert list(mod["main"].attrs["torch_state"]) == ["y"]
    x, y = torch.full((2, 3), 5.0), torch.full((2, 3), 7.0)
    for found, wanted in zip(compiled(mod)(x, y), (2 * x + y + 1, 10, y + 1), strict=True):
        np.testing.assert_array_equal(found, np.asarray(wanted, "float32"))


def test_graphs_of_tensors_stay_as_they_are() -> None:
    module = torch.export.export(torch.nn.ReLU(), (torch.ones(3),)).graph_module
    assert without_constants(module) is module


def test_numbers_that_vary_are_refused_by_name() -> None:
    class Sized(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> Any:
            return x + n, x.shape[0]

    n = torch.export.Dim("n")
    varying = torch.export.export(
        Sized(), (torch.ones(3), 7), dynamic_shapes=({0: n}, torch.export.Dim.DYNAMIC), strict=False
    )
    with pytest.raises(Unsupported, match="the program's input n: it is neither a tensor nor a constant"):
        from_exported_program(varying)
    sized = torch.export.export(Sized(), (torch.ones(3), 7), dynamic_shapes=({0: n}, None), strict=False)
    assert integer_results(sized) == (1,)
    assert [str(each.dtype) for each in from_exported_program(sized)["main"].ret_ty.fields] == [
        "float32",
        "int64",
    ]

    class Element(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x + 1, x.argmax().item()

    element = torch.export.export(Element(), (torch.ones(3),), strict=False)
    with pytest.raises(Unsupported, match="the program's result 1: it is a number that a tensor decides"):
        from_exported_program(element)
