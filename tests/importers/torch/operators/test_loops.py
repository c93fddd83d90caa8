# SPDX-License-Identifier: Apache-2.0
"""PyTorch's while_loop and scan, compiled once for all numbers of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402
from torch.export import Dim, export  # noqa: E402
from tvm.relax.frontend.torch import from_exported_program  # noqa: E402

import tvm_stitch  # noqa: E402
from tests.relax.loops.modules import run  # noqa: E402
from tvm_stitch.importers.torch.converters import torch_converters  # noqa: E402


class Iterated(nn.Module):
    """A layer applied n times."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4) / 2)

    def forward(self, x: Any, n: Any) -> Any:
        """Return the number of steps and the result."""
        first = torch.zeros((), dtype=torch.int64)
        return while_loop(
            lambda i, y: i < n, lambda i, y: (i + 1, torch.tanh(y @ self.weight) * 1.5), (first, x)
        )


class Scanned(nn.Module):
    """A recurrent cell over the rows of x."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, h: Any, x: Any) -> Any:
        """Return the last state and all states, doubled."""

        def step(state: Any, row: Any) -> Any:
            after = torch.tanh(self.layer(state) + row)
            return after, after * 2

        return scan(step, h, x, dim=0)


def compiled(module: Any, inputs: tuple[Any, ...], shapes: dict[str, Any]) -> Any:
    program = export(module, inputs, dynamic_shapes=shapes)
    return tvm_stitch.compile(from_exported_program(program, custom_convert_map=torch_converters()))


def check(executable: Any, module: Any, *inputs: Any) -> None:
    found = run(executable, [tvm.runtime.tensor(x.numpy()) for x in inputs])
    for a, b in zip(found, module(*inputs), strict=True):
        assert a.shape == b.shape
        assert np.allclose(a.numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-5)


def test_while_loop() -> None:
    torch.manual_seed(0)
    module = Iterated().eval()
    example = (torch.randn(3, 4), torch.tensor(5))
    executable = compiled(module, example, {"x": {0: Dim("rows", min=1, max=40)}, "n": None})
    for steps in (0, 1, 2, 50):
        check(executable, module, torch.randn(2, 4), torch.tensor(steps))


def test_scan() -> None:
    torch.manual_seed(0)
    module = Scanned().eval()
    example = (torch.randn(3, 4), torch.randn(7, 3, 4))
    executable = compiled(module, example, {"h": None, "x": {0: Dim("steps", min=1, max=400)}})
    for steps in (1, 2, 100):
        check(executable, module, torch.randn(3, 4), torch.randn(steps, 3, 4))
