# SPDX-License-Identifier: Apache-2.0
"""Reads and writes at computed indices as PyTorch has them, and what TVM's importer makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_stitch

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from tvm.relax.frontend.torch import from_exported_program  # noqa: E402

from tests.importers.torch.programs import compare, imported  # noqa: E402
from tvm_stitch.importers.torch import Unsupported  # noqa: E402
from tvm_stitch.importers.torch.converters import torch_converters  # noqa: E402

LLVM = tvm.target.Target("llvm")


class Made(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def compiled(function: Callable[..., Any], *args: Any, dynamic: Any = None, **how: Any) -> Any:
    program = torch.export.export(Made(function), args, dynamic_shapes=dynamic)
    mod = from_exported_program(program, unwrap_unit_return_tuple=True, **how)
    return relax.VirtualMachine(tvm_stitch.compile(mod, LLVM), tvm.cpu())["main"]


def run(function: Callable[..., Any], *args: Any, **how: Any) -> list[np.ndarray]:
    found = compiled(function, *args, **how)(*(tvm.runtime.tensor(x.contiguous().numpy()) for x in args))
    return [x.numpy() for x in ([found] if isinstance(found, tvm.runtime.Tensor) else found)]


def check(function: Callable[..., Any], *args: Any) -> None:
    """Check a function that gives a list of tensors."""
    found = run(function, *args, custom_convert_map=torch_converters())
    wanted = function(*(x.double() if x.is_floating_point() else x for x in args))
    for got, want in zip(found, wanted, strict=True):
        assert got.shape == tuple(want.shape)
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


def numbers(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def places(below: int, *shape: int, least: int = 0) -> Any:
    return torch.randint(least, below, shape, generator=torch.Generator().manual_seed(below + sum(shape)))


@pytest.mark.parametrize("least", [0, -4], ids=["natural", "negative"])
def test_indices_are_broadcast_with_each_other(least: int) -> None:
    def function(x: Any, i: Any, j: Any) -> list[Any]:
        return [
            x[:, i, j],
            x[i, j],
            x[i, :, j],
            x.unsqueeze(-1)[:, i, j],
            x[:, i[:, None], j],
            x.unsqueeze(0)[:, i, :, j],
            x[i[:, None], j, i],
        ]

    check(function, numbers(4, 5, 6), places(4, 7, least=least), places(4, 7, least=least))


@pytest.mark.parametrize("index", [[5], [0, -6]])
def test_constant_indices_outside_are_refused(index: list[int]) -> None:
    for function in (lambda x: x[:, index], lambda x: x.index_select(1, torch.tensor(index))):
        with pytest.raises(Unsupported, match="outside of the 5 elements"):
            imported(function, numbers(4, 5))


def test_tvm_still_takes_all_pairs() -> None:
    (found,) = run(lambda x, i, j: x[:, i, j], numbers(4, 5, 6), places(4, 7), places(4, 7))
    assert found.shape != (4, 7), "the converter is needed no longer"


@pytest.mark.parametrize("sums", [False, True])
def test_writes(sums: bool) -> None:
    """Each position is written once, or the result would depend on the order. Sums have one twice."""

    put = torch.ops.aten.index_put.default

    def function(x: Any, i: Any, j: Any, v: Any) -> list[Any]:
        return [
            put(x, [i], v, sums),
            put(x, [i], v[0, 0, 0], sums),
            put(x, [None, i], v[:, :4], sums),
            put(x, [i, j], v[:, 0], sums),
            put(x, [i, None, j], v[:, :, 0], sums),
            put(x, [i, j, i], v[:, 0, 0], sums),
            put(x.unsqueeze(0), [None, i, None, j], v[:, :1, :5], sums),
        ]

    i, j = torch.tensor([2, -1, 2 if sums else 0, 1]), torch.tensor([0, 1, 0, -1])
    check(function, numbers(4, 5, 6), i, j, numbers(4, 5, 6))


def test_index_add() -> None:
    check(
        lambda x, i, v, w: [x.index_add(0, i, v), x.index_add(1, i, w)],
        numbers(4, 4),
        places(4, 9),
        numbers(9, 4),
        numbers(4, 9),
    )


@pytest.mark.parametrize("shape", [(7, 5, 6), (7, 3, 6), (7, 3, 2), (2, 5, 6)], ids=str)
def test_scatters_of_a_smaller_index(shape: tuple[int, ...]) -> None:
    """The index may be smaller than the data and than the source."""
    index = torch.argsort(numbers(9, *shape[1:]), 0)[: shape[0]]
    check(
        lambda x, i, k, v: [x.scatter_add(0, i, v), x.scatter(0, k, v), x.scatter(0, k, 2.5)],
        numbers(9, 5, 6),
        places(9, *shape),
        index,
        numbers(7, 5, 6),
    )


@pytest.mark.parametrize("itself", [True, False])
def test_scatter_reduce(itself: bool) -> None:
    def function(x: Any, i: Any, v: Any) -> list[Any]:
        ways = ("sum", "prod", "mean", "amax", "amin")
        return [x.scatter_reduce(1, i, v, way, include_self=itself) for way in ways]

    check(function, numbers(3, 8), places(6, 3, 20), numbers(3, 20))


def test_booleans_are_added_as_one_or_the_other() -> None:
    """A sum of 256 bytes of ones would be 0."""
    base = torch.zeros(3, 2, dtype=torch.bool)
    true = torch.ones(256, 2, dtype=torch.bool)
    index = torch.zeros(256, 2, dtype=torch.int64)

    def functions(x: Any, i: Any, v: Any) -> list[Any]:
        ways = [(way, itself) for way in ("sum", "prod", "amax", "amin") for itself in (True, False)]
        return [
            x.scatter_add(0, i, v),
            x.scatter(0, i[:1] + 2, v),
            x.scatter(0, i, True),
            x.index_add(0, i[:, 0], v),
            torch.ops.aten.index_put.default(x, [i[:, 0]], v, True),
            x.put(i[:, 0], v[:, 0], accumulate=True),
            *(x.scatter_reduce(0, i, v, way, include_self=itself) for way, itself in ways),
        ]

    compare({"scatters": functions}, base, index, true)


def test_messages_of_a_graph_of_any_size() -> None:
    """Sums over the edges of a graph whose nodes and edges are symbolic."""

    def function(x: Any, edges: Any) -> Any:
        return torch.relu(torch.zeros_like(x).index_add(0, edges[1], x[edges[0]]))

    nodes, count = torch.export.Dim("nodes"), torch.export.Dim("edges")
    main = compiled(
        function, numbers(9, 4), places(9, 2, 30), dynamic={"args": ({0: nodes}, {1: count})},
        custom_convert_map=torch_converters(),
    )  # fmt: skip
    for n, e in ((9, 30), (2, 3), (40, 100)):
        x, edges = numbers(n, 4), places(n, 2, e)
        found = main(tvm.runtime.tensor(x.numpy()), tvm.runtime.tensor(edges.numpy())).numpy()
        np.testing.assert_allclose(found, function(x.double(), edges).numpy(), rtol=1e-5, atol=1e-5)


def test_grids() -> None:
    def function(x: Any, grid: Any) -> list[Any]:
        return [
            F.grid_sample(x, grid, mode, padding_mode=padding, align_corners=aligned)
            for mode, padding, aligned in (
                ("bilinear", "zeros", False),
                ("bilinear", "border", True),
                ("bilinear", "reflection", True),
                ("bicubic", "zeros", False),
                ("nearest", "zeros", True),
                ("nearest", "border", False),
            )
        ]

    x, grid = numbers(2, 3, 6, 7), 0.6 * numbers(2, 4, 5, 2)
    check(function, x, grid)
    halves = run(function, x.half(), grid.half(), custom_convert_map=torch_converters())
    for found, want in zip(halves, function(x.half().float(), grid.half().float()), strict=True):
        assert found.dtype == np.float16
        np.testing.assert_allclose(found, want.numpy(), rtol=2e-3, atol=2e-3)
