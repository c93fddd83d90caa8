# SPDX-License-Identifier: Apache-2.0
"""Modules of PyTorch keep their paths, and the imported module is the importer's own."""

from __future__ import annotations

from typing import Any

import torch
import tvm
from tvm import relax

import tvm_stitch
from tvm_stitch.importers.torch import from_exported_program
from tvm_stitch.importers.torch.names import from_exported_program_named


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(self.norm(x))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(Layer(), Layer())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.layers(x), -1)


def program() -> Any:
    return torch.export.export(Model().eval(), (torch.randn(4, 16),))


def test_kernels_are_traced_to_modules() -> None:
    mod = from_exported_program_named(program(), keep_params_as_input=True)
    report = tvm_stitch.explain(mod, "llvm")
    assert report.model is not None
    sources = {o.source.rpartition("/")[0] for o in report.model.operators}
    assert {"layers.0.norm", "layers.0.linear", "layers.1.norm", "layers.1.linear", "layers.1"} <= sources
    assert "layers.0.norm" in str(report)


def test_the_module_is_the_same() -> None:
    exported = program()
    options = {"keep_params_as_input": True, "unwrap_unit_return_tuple": True}
    made = from_exported_program_named(exported, **options)
    tvm.ir.assert_structural_equal(made, from_exported_program(exported, **options))


def test_converters_of_ones_own_come_first() -> None:
    def doubled(node: Any, importer: Any) -> relax.Var:
        return importer.block_builder.emit(
            relax.op.add(importer.env[node.args[0]], importer.env[node.args[0]])
        )

    mod = from_exported_program_named(program(), custom_convert_map={"_softmax.default": doubled})
    calls = [b.value.op.name for b in mod["main"].body.blocks[0].bindings if isinstance(b.value, relax.Call)]
    assert "relax.nn.softmax" not in calls and calls.count("relax.add") > 4
