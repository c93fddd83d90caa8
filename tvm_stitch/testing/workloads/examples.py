# SPDX-License-Identifier: Apache-2.0
"""The models of the user guide, so that each of its blocks runs alone."""

from __future__ import annotations

from typing import Any

from tvm.script import ir as I
from tvm.script import relax as R


@I.ir_module
class Attention:
    @R.function
    def main(x: R.Tensor((64, 512), "float32"), w: R.Tensor((512, 512), "float32")) -> R.Tuple(
        R.Tensor((64, 512), "float32"), R.Tensor((512,), "float32"), R.Tensor((64,), "int64")
    ):
        with R.dataflow():
            scores = R.matmul(x, w)
            scaled = R.multiply(scores, R.const(0.125, "float32"))
            weights = R.nn.softmax(scaled, axis=-1)
            mixed = R.add(weights, x)
            totals = R.sum(mixed, axis=0)
            best = R.argmax(mixed, axis=-1)
            result = (mixed, totals, best)
            R.output(result)
        return result


@I.ir_module
class Keys:
    @R.function
    def main(x: R.Tensor((8, "keys"), "float32")) -> R.Tensor((8, "keys"), "float32"):
        with R.dataflow():
            y = R.nn.softmax(x, axis=-1)
            R.output(y)
        return y


@I.ir_module
class Sorted:
    @R.function
    def main(x: R.Tensor((8, 64), "float32")) -> R.Tensor((8, 64), "float32"):
        with R.dataflow():
            y = R.sort(x, axis=-1)
            R.output(y)
        return y


def head_program() -> Any:
    """Return a PyTorch program: a layer norm and a softmax of rows of 64, any number of them."""
    import torch

    class Head(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(self.norm(x), -1)

    rows = {"x": {0: torch.export.Dim("rows")}}
    return torch.export.export(Head().eval(), (torch.randn(4, 64),), dynamic_shapes=rows)
