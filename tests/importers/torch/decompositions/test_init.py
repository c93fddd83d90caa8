# SPDX-License-Identifier: Apache-2.0
"""The table of decompositions."""

from __future__ import annotations

import torch

from tvm_stitch.importers.torch.decompositions import PYTORCHS_TOO, decomposed, decomposition_table


def test_operators_that_are_named_exist() -> None:
    table = {str(operator) for operator in decomposition_table()}
    for name in PYTORCHS_TOO:
        packet, overload = name.split(".")
        assert hasattr(getattr(torch.ops.aten, packet), overload), name
    assert {"aten.cummax.default", "aten.index_put.default", "aten.erfc.default"} <= table


def test_programs_are_decomposed() -> None:
    class Extremes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.cummax(0)[0]

    program = decomposed(torch.export.export(Extremes(), (torch.randn(5),)))
    names = {node.target.__name__ for node in program.graph.nodes if node.op == "call_function"}
    assert "cummax.default" not in names and "where.self" in names
