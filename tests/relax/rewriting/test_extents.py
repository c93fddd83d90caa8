# SPDX-License-Identifier: Apache-2.0
"""Symbolic extents that are too small for an operator are refused when a model runs, by both importers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvm_stitch
from tests.importers.torch.programs import imported
from tvm_stitch.importers.onnx.load import from_onnx

Run = Callable[..., Any]


def run_of(mod: tvm.IRModule) -> Run:
    main = relax.VirtualMachine(tvm_stitch.compile(mod, "llvm"), tvm.cpu())["main"]
    return lambda columns: main(tvm.runtime.tensor(np.ones((3, columns), "float32")))


def onnx_node(kind: str, outputs: int = 1, index: Any = None, **attributes: Any) -> Run:
    """Return a function that runs a node of ``<3, n>``, from n."""
    tensors = [numpy_helper.from_array(np.array(index, "int64"), "i")] if index is not None else []
    names = ["y", "z"][:outputs]
    attributes = attributes if kind == "GatherND" else {"axis": 1, **attributes}
    node = helper.make_node(kind, ["x"] + ["i"] * len(tensors), names, **attributes)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, "n"])
    results = [onnx.ValueInfoProto(name=name) for name in names]
    graph = helper.make_graph([node], "g", [given], results, tensors)
    return run_of(
        from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    )


def torch_function(function: Callable[..., Any]) -> Run:
    columns = torch.export.Dim("n")
    return run_of(imported(function, torch.ones(3, 8), dynamic=(({1: columns},),)))


CASES: dict[str, tuple[Callable[[], Run], int]] = {
    "ArgMax": (lambda: onnx_node("ArgMax"), 1),
    "ArgMin, the last": (lambda: onnx_node("ArgMin", select_last_index=1), 1),
    "TopK": (lambda: onnx_node("TopK", 2, [4]), 4),
    "Gather": (lambda: onnx_node("Gather", index=[0, 5]), 6),
    "Gather from the end": (lambda: onnx_node("Gather", index=[-4]), 4),
    "GatherElements": (lambda: onnx_node("GatherElements", index=[[0], [2], [1]]), 3),
    "GatherND": (lambda: onnx_node("GatherND", index=[[0, 5], [2, -3]]), 6),
    "GatherND of batches": (lambda: onnx_node("GatherND", index=[[0], [2], [-4]], batch_dims=1), 4),
    "argmax": (lambda: torch_function(lambda x: x.argmax(1)), 1),
    "argmin of all": (lambda: torch_function(lambda x: x.argmin()), 1),
    "constant indices": (lambda: torch_function(lambda x: x[:, [0, 5]]), 6),
    "constant indices of two axes": (lambda: torch_function(lambda x: x[[0, 1], [0, -4]]), 4),
    "gather": (lambda: torch_function(lambda x: x.gather(1, torch.tensor([[0], [2], [-1]]))), 3),
    "index_select": (lambda: torch_function(lambda x: x.index_select(1, torch.tensor([3]))), 4),
    "max": (lambda: torch_function(lambda x: x.max(1)), 1),
}
"""The functions that make a run, and the least number of columns, by name."""


@pytest.mark.parametrize("name", CASES)
def test_too_small_extents_are_refused(name: str) -> None:
    make, least = CASES[name]
    run = make()
    for columns in (least, least + 3):
        run(columns)
    with pytest.raises(RuntimeError, match=rf"{least - 1} vs. {least}\D"):
        run(least - 1)
