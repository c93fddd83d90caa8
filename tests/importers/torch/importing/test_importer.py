# SPDX-License-Identifier: Apache-2.0
"""TVM's importer with this package's converters, in branches too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tvm import relax, tirx

from tvm_stitch.importers.torch import Unsupported, from_exported_program
from tvm_stitch.importers.torch.converters import own_converters
from tvm_stitch.importers.torch.decompositions import decomposed
from tvm_stitch.importers.torch.importing.importer import Importer
from tvm_stitch.importers.torch.importing.state import view_of


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.any(0).float(), lambda x: x.sum(0), (x,))


def test_branches_use_the_same_converters() -> None:
    program = decomposed(torch.export.export(Scaled(), (torch.randn(3, 2),)))
    seen: list[str] = []

    def noted(name: str, convert: Any) -> Any:
        def converted(node: Any, importer: Any) -> Any:
            seen.append(name)
            return convert(node, importer)

        return converted

    importer = Importer({name: noted(name, convert) for name, convert in own_converters().items()})
    importer.imported(view_of(program, "constants"), False, False, False)
    assert "sum.dim_IntList" in seen and ("any.dim" in seen or "any.dims" in seen)
    assert "sum" in " ".join(importer.names.values())


def test_symbols_that_pytorch_has_fixed_are_numbers() -> None:
    class Spaced(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.linspace(0, 1, x.shape[1])

    dynamic = ({0: torch.export.Dim("n"), 1: torch.export.Dim.AUTO},)
    mod = from_exported_program(torch.export.export(Spaced(), (torch.randn(2, 8),), dynamic_shapes=dynamic))
    rows, columns = mod["main"].params[0].ty.shape
    assert isinstance(rows, tirx.Var) and int(columns) == 8


def test_failures_of_tvm_name_the_operator() -> None:
    def failing(node: Any, importer: Any) -> Any:
        return importer.block_builder.emit(relax.op.reshape(importer.env[node.args[0]], [7]))

    def wrong(node: Any, importer: Any) -> Any:
        raise ValueError("wrong")

    program = torch.export.export(torch.nn.ReLU(), (torch.randn(2, 8),))
    with pytest.raises(Unsupported, match=r"relu.default \(relu\): TVM's importer fails: .*Reshape"):
        from_exported_program(program, custom_convert_map={"relu.default": failing})
    with pytest.raises(ValueError, match="^wrong$"):
        from_exported_program(program, custom_convert_map={"relu.default": wrong})
