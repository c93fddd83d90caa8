# SPDX-License-Identifier: Apache-2.0
"""Texts of refused operators."""

from __future__ import annotations

import torch

from tvm_stitch.importers.torch.importing.unsupported import Unsupported, described, name_of, path_of


class Inner(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)


def test_a_node_is_named_with_its_module() -> None:
    program = torch.export.export(torch.nn.Sequential(Inner()), (torch.randn(3),))
    (node,) = [node for node in program.graph.nodes if node.op == "call_function"]
    assert (name_of(node), path_of(node), described(node)) == ("sin.default", "0", "sin.default (0/sin)")
    assert str(Unsupported.at(node, "it is Tuesday")) == "sin.default (0/sin): it is Tuesday"


def test_reasons_are_listed_once() -> None:
    error = Unsupported([("a", "x"), ("b", "y"), ("a", "x")])
    assert str(error) == "a: x; b: y" and error.reasons == (("a", "x"), ("b", "y"))
