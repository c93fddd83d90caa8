# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of operands of several types, and of numbers, as PyTorch computes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm

torch = pytest.importorskip("torch")

from tests.importers.torch.test_indexing import compiled, numbers, run  # noqa: E402
from tvm_stitch.importers.torch.arithmetic import arithmetic_converters  # noqa: E402
from tvm_stitch.importers.torch.converters import torch_converters  # noqa: E402

INTEGERS = torch.arange(-10, 11).reshape(3, 7)
POSITIVE = INTEGERS.abs() + 1
BOOLEANS = INTEGERS % 2 == 0


CASES: dict[str, Callable[[Any, Any, Any], list[Any]]] = {
    "integers and fractions": lambda x, i, b: [i * 2.5, i + 1.5, i - 0.5, 2.5 - i, i / 2, i % 2.5, i // 2.5],
    "remainders": lambda x, i, b: [torch.fmod(i, 2.5), torch.remainder(i, 3), torch.fmod(x, 0.5), x % -0.7],
    "comparisons": lambda x, i, b: [i > 1.5, i == 2.0, i <= x, i != 0.5, i < 2, b == (i > 2), b != i],
    "booleans and numbers": lambda x, i, b: [b * x, b + 1.5, b * 2, b * 2.5, b + b, b & (i > 0), i + True],
    "several types": lambda x, i, b: [
        i * x,
        i.int() + i,
        i.to(torch.int8) * 2,
        torch.maximum(i, x),
        torch.minimum(x.half(), x),
        i.int() & i,
        x * torch.tensor(2.5, dtype=torch.float64),
        i * torch.tensor(2.5),
    ],
    "alpha": lambda x, i, b: [
        torch.add(x, x, alpha=2),
        torch.sub(x, i, alpha=3),
        torch.rsub(x, x + 1, alpha=2),
        torch.rsub(x, 2.0, alpha=0.5),
        torch.add(i, i, alpha=-2),
        torch.add(x, 1.5, alpha=2),
        torch.ops.aten.sub.Scalar(x, 1.5, 2),
    ],
    "shifts": lambda x, i, b: [
        i << 2,
        i >> 1,
        torch.bitwise_left_shift(i, i.abs() % 3),
        i.abs() % 3 << i.abs(),
    ],
    "powers": lambda x, i, b: [(i.abs() + 1) ** 0.5, torch.pow(i, 3), i**2, torch.atan2(i, i + 1), x**3],
    "powers of booleans": lambda x, i, b: [b**2, torch.square(b), torch.pow(b, 0), i**11, i**0],
    "choices": lambda x, i, b: [
        torch.where(b, i, x),
        torch.where(b, 2.5, i),
        torch.where(b, 1, 0),
        torch.where(b, x, 0),
        torch.heaviside(x, x * 2),
    ],
    "bounds": lambda x, i, b: [
        i.clamp(min=0.5),
        i.clamp(-3, 2.5),
        x.clamp(-0.3, 0.4),
        x.clamp(max=0.1),
        x.clip(x * 0 + 0.2, x.abs()),
        torch.clamp_max(x, 0.2),
        torch.clamp_min(i, 3),
        x.clamp(max=i),
        torch.ops.aten.clamp_max.default(x, 0.3),
    ],
    "sums and means": lambda x, i, b: [i.sum(1) * 0.1, b.sum(1) * 0.5, i.max() * 0.5],
}


@pytest.mark.parametrize("name", CASES)
def test_types_are_those_of_pytorch(name: str) -> None:
    x, function = numbers(3, 7), CASES[name]
    found = run(function, x, INTEGERS, BOOLEANS, custom_convert_map=torch_converters())
    for got, want in zip(found, function(x, INTEGERS, BOOLEANS), strict=True):
        assert str(got.dtype) == str(want.dtype).removeprefix("torch.")
        np.testing.assert_allclose(got, want.numpy(), rtol=2e-6, atol=2e-6)


def test_tvm_still_gives_numbers_the_type_of_the_tensor() -> None:
    (found,) = run(lambda i: [i * 2.5], INTEGERS)
    assert found.dtype == "int64", "the converters are needed no longer"


def test_tvm_still_leaves_out_alpha() -> None:
    x = numbers(3, 7)
    (found,) = run(lambda x: [torch.add(x, x, alpha=2)], x)
    np.testing.assert_allclose(found, 2 * x.numpy(), rtol=1e-6, err_msg="the converters are needed no longer")


def test_extents_stay_extents() -> None:
    def scaled(x: Any) -> list[Any]:
        rows = x.shape[0]
        return [x * rows, x + (rows * 2 - 1), 1 - rows - x, x / rows, torch.add(x, rows, alpha=3), x > rows]

    x = numbers(4, 3)
    dynamic = {"args": ({0: torch.export.Dim("rows", min=1, max=9)},)}
    function = compiled(scaled, x, dynamic=dynamic, custom_convert_map=torch_converters())
    for rows in (1, 4, 9):
        given = numbers(rows, 3)
        found = function(tvm.runtime.tensor(given.numpy()))
        for got, want in zip(found, scaled(given), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)


def test_extents_and_tensors_without_axes() -> None:
    """The result has no axis: a program that counts its tokens has such a sum."""

    def counted(x: Any, count: Any) -> list[Any]:
        rows = x.shape[0]
        return [count + rows, rows - count, torch.clamp(count, max=rows), count > rows, count * rows + x]

    x = numbers(4, 3)
    dynamic = {"args": ({0: torch.export.Dim("rows", min=1, max=9)}, None)}
    function = compiled(counted, x, torch.tensor(5), dynamic=dynamic, custom_convert_map=torch_converters())
    for rows in (1, 4, 9):
        given = numbers(rows, 3), torch.tensor(7)
        found = function(*(tvm.runtime.tensor(each.numpy()) for each in given))
        for got, want in zip(found, counted(*given), strict=True):
            assert got.numpy().dtype == want.numpy().dtype
            np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_operators_that_are_named_exist() -> None:
    """A misspelt one would never be asked for."""
    for name in arithmetic_converters():
        packet, _overload = name.split(".")
        assert hasattr(torch.ops.aten, packet), name
