# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch's core set that TVM's importer lacks. Reductions and ranges are in test_torch_converters.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm

torch = pytest.importorskip("torch")

from tests.importers.torch.test_indexing import compiled, numbers, run  # noqa: E402
from tvm_stitch.importers.torch.converters import torch_converters  # noqa: E402

EDGES = [-1.0, -0.2, 0.0, 0.7]

CASES: dict[str, Callable[[Any], list[Any]]] = {
    "variances and means": lambda x: [
        *torch.var_mean(x, -1),
        *torch.var_mean(x, (0, 2), correction=0, keepdim=True),
        *torch.var_mean(x, 1, correction=3),
        *torch.std_mean(x),
    ],
    "norms of order 0": lambda x: [
        torch.linalg.vector_norm(x.relu(), 0, -1),
        torch.linalg.vector_norm(x.relu(), 0, (0, 1), keepdim=True),
        torch.linalg.vector_norm(x, 3, 1),
    ],
    "powers of two": lambda x: [torch.exp2(x), torch.exp2((x * 4).int())],
    "searches": lambda x: [
        torch.searchsorted(torch.tensor(EDGES, dtype=x.dtype), x),
        torch.searchsorted(torch.tensor(EDGES, dtype=x.dtype), x.clamp(-1, 0.7), right=True),
        torch.searchsorted(torch.tensor(EDGES, dtype=x.dtype), x, out_int32=True, side="right"),
        torch.bucketize(x, torch.tensor(EDGES, dtype=x.dtype)),
    ],
    "the greatest, in any order": lambda x: [x.topk(3, sorted=False)[0].sum(-1), *x.topk(1, 0, sorted=False)],
    "extremes of numbers": lambda x: [
        torch.fmax(x.log(), x),
        torch.fmin(x, x.log()),
        torch.fmax(x.log(), x.log()),
        torch.fmin((x * 4).int(), (x.flip(0) * 4).int()),
    ],
    "windows": lambda x: [
        x.unfold(1, 3, 2),
        x.unfold(-1, 4, 4).sum(-1),
        x.unfold(0, 2, 1),
        x.unfold(1, 5, 1).softmax(-1).unfold(0, 1, 1),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_what_the_importer_lacks(name: str) -> None:
    x, function = numbers(3, 5, 9), CASES[name]
    found = run(function, x, custom_convert_map=torch_converters())
    for got, want in zip(found, function(x), strict=True):
        assert str(got.dtype) == str(want.dtype).removeprefix("torch.") and got.shape == tuple(want.shape)
        np.testing.assert_allclose(got, want.numpy(), rtol=3e-6, atol=3e-6)


def test_variances_over_a_symbolic_batch() -> None:
    def moments(x: Any) -> list[Any]:
        return [
            *torch.var_mean(x, 0),
            *torch.var_mean(x, (0, 2), correction=0),
            *torch.var_mean(x, -1),
            x.var(0),
            x.std((0, 1), keepdim=True),
            x.var(),
            x.std(1),
            x.var(0, correction=0),
        ]

    batch = {"args": ({0: torch.export.Dim("batch", min=2, max=9)},)}
    function = compiled(moments, numbers(3, 4, 5), dynamic=batch, custom_convert_map=torch_converters())
    for count in (2, 3, 9):
        x = numbers(count, 4, 5)
        for got, want in zip(function(tvm.runtime.tensor(x.numpy())), moments(x.double()), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-5)


def test_windows_along_a_symbolic_axis() -> None:
    def windows(x: Any) -> list[Any]:
        return [x.unfold(1, 3, 2), x.unfold(1, 2, 1).sum(-1), x.unfold(-1, 2, 2)]

    length = {"args": ({1: torch.export.Dim("length", min=5, max=64)},)}
    function = compiled(windows, numbers(2, 8, 5), dynamic=length, custom_convert_map=torch_converters())
    for count in (5, 7, 8, 33):
        x = numbers(2, count, 5)
        for got, want in zip(function(tvm.runtime.tensor(x.numpy())), windows(x), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6, atol=1e-6)


def test_what_is_not_imported_is_told() -> None:
    x = numbers(3, 4)
    with pytest.raises(ValueError, match="one sorted sequence only"):
        run(lambda x: [torch.searchsorted(x, x)], x, custom_convert_map=torch_converters())
