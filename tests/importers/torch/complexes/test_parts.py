# SPDX-License-Identifier: Apache-2.0
"""Pairs of parts, and the nodes that compute one of them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tvm_stitch.importers.torch.complexes.parts import Parts, is_complex, real_tensor, touches_complex  # noqa: E402


def test_a_function_of_each_part() -> None:
    assert Parts(1, 2).each(lambda x: x + 1) == Parts(2, 3)


def test_complex_values() -> None:
    x = torch.zeros(2, dtype=torch.complex64)
    assert is_complex(x) and is_complex([x.real, x]) and not is_complex(x.real) and not is_complex(1j)


def test_nodes_that_touch_complex_numbers() -> None:
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ((x * 1j).abs() + 1).sqrt()

    graph = torch.export.export(Module(), (torch.ones(2),)).graph
    touched = [n.target.__name__ for n in graph.nodes if n.op == "call_function" and touches_complex(n)]
    assert touched == ["mul.Tensor", "abs.default"]


def test_a_conjugate_is_resolved() -> None:
    x = torch.tensor([1 + 2j]).conj()
    assert real_tensor(x).tolist() == [[1.0, -2.0]]
    assert real_tensor(x.real) is not None and real_tensor(torch.ones(1)).tolist() == [1.0]
