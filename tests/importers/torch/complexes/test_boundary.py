# SPDX-License-Identifier: Apache-2.0
"""Complex inputs, buffers and results of programs are real tensors with a last axis of two elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.importers.torch.complexes.test_arithmetic import numbers  # noqa: E402
from tests.importers.torch.programs import compiled, imported, same  # noqa: E402
from tvm_stitch.importers.torch import from_exported_program, initial_state  # noqa: E402
from tvm_stitch.importers.torch.complexes.boundary import with_real_boundary  # noqa: E402


class Rotated(torch.nn.Module):
    """Rotary embeddings with a table of complex numbers, as the first Llama has them."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(64.0), 10.0 ** -torch.arange(4))
        self.register_buffer("table", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.table[: x.shape[1], None]).flatten(3).type_as(x)


def test_a_complex_buffer_is_a_constant() -> None:
    rows, length = torch.export.Dim("rows", max=8), torch.export.Dim("length", min=2, max=64)
    x = torch.randn(2, 5, 3, 8)
    run = compiled(imported(Rotated(), x, dynamic=({0: rows, 1: length},)))
    for other in (x, torch.randn(1, 33, 3, 8)):
        assert same(run(other)[0], Rotated()(other), 2e-6)


def test_inputs_and_results() -> None:
    x = numbers(2, 3)
    mod = imported(lambda x, y: [x, x * y, y, x[0]], x, torch.ones(3))
    assert [str(p.ty.dtype) for p in mod["main"].params] == ["float32"] * 2
    assert [int(e) for e in mod["main"].params[0].ty.shape] == [2, 3, 2]
    for got, want in zip(compiled(mod)(x, torch.ones(3)), [x, x, torch.ones(3), x[0]], strict=True):
        assert same(got, want, 1e-6)


def test_a_changed_buffer_is_a_result_and_an_input() -> None:
    class Sum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total += x
            return self.total.abs()

    x = numbers(3)
    program = torch.export.export(Sum(), (x,))
    mod = from_exported_program(program, state="inputs")
    (state,) = initial_state(program, mod).values()
    size, total = compiled(mod)(x, state + 1)
    np.testing.assert_allclose(total, torch.view_as_real(x + 1 + 1j).numpy(), rtol=1e-6)
    np.testing.assert_allclose(size, (x + 1 + 1j).abs().numpy(), rtol=1e-6)


def test_the_given_graph_stays() -> None:
    def exported(function: Any, x: torch.Tensor) -> Any:
        class Module(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return function(x)

        return torch.export.export(Module(), (x,)).graph_module

    given = exported(lambda x: x * 2, numbers(3))
    before = str(given.graph)
    assert "view_as_real" in str(with_real_boundary(given).graph) and str(given.graph) == before
    inside = exported(lambda x: torch.fft.fft(x).abs(), torch.ones(3))
    assert with_real_boundary(inside) is inside
