# SPDX-License-Identifier: Apache-2.0
"""TVM's importer with this package's converters, in branches too."""

from __future__ import annotations

from typing import Any

import torch

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
