# SPDX-License-Identifier: Apache-2.0
"""Models of all kinds become Relax modules, or are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import tvm_stitch
from tests.importers.onnx.test_shapes import flattened
from tvm_stitch.front.sources import source_of
from tvm_stitch.importers.onnx import compare
from tvm_stitch.importers.onnx.honoured.check import UnsupportedModel


def onnx_model() -> onnx.ModelProto:
    """Return ``y = relu(x)`` of <batch, 3>."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sources(folder: Path) -> list[Any]:
    program = torch.export.export(torch.nn.ReLU(), (torch.randn(2, 3),))
    torch.export.save(program, folder / "relu.pt2")
    onnx.save(onnx_model(), folder / "relu.onnx")
    return [program, onnx_model(), folder / "relu.pt2", str(folder / "relu.onnx"), source_of(program).mod]


def test_every_kind_of_model(tmp_path: Path) -> None:
    x = np.random.default_rng().standard_normal((2, 3)).astype("float32")
    *models, mod = sources(tmp_path)
    for model in models:
        found = tvm_stitch.compile(model, "llvm")(x)
        np.testing.assert_array_equal(found, np.maximum(x, 0))
    (found,) = tvm_stitch.compile(mod, "llvm")(x)  # whose function returns a tuple
    np.testing.assert_array_equal(found, np.maximum(x, 0))
    report = tvm_stitch.explain(torch.nn.ReLU(), "llvm", example_inputs=(torch.randn(2, 3),))
    assert len(report.kernels) == 1


def test_a_symbolic_batch() -> None:
    batch = torch.export.Dim("batch")
    compiled = tvm_stitch.compile(
        torch.nn.Linear(3, 2), "llvm", example_inputs=torch.randn(4, 3), dynamic_shapes=({0: batch},)
    )
    assert [compiled(torch.randn(n, 3)).shape[0] for n in (1, 7)] == [1, 7]


class Branching(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("model", "options", "kind", "text"),
    [
        (3, {}, TypeError, "a model must be a Relax IRModule, or one of PyTorch or ONNX, not int"),
        (torch.nn.ReLU(), {}, TypeError, "needs example inputs"),
        (
            Branching(),
            {"example_inputs": torch.ones(2)},
            ValueError,
            "torch.export does not export the module",
        ),
        ("nowhere.onnx", {}, ValueError, "there is no file nowhere.onnx"),
    ],
)
def test_what_is_refused(model: Any, options: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        tvm_stitch.compile(model, "llvm", **options)


def test_a_file_is_read_by_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    onnx.save(onnx_model(), path)
    assert vars(source_of(path).signature) == vars(source_of(onnx_model()).signature)
    program = torch.export.export(torch.nn.ReLU(), (torch.randn(2, 3),))
    torch.export.save(program, tmp_path / "relu.pt2")
    other = (tmp_path / "relu.pt2").rename(tmp_path / "relu.zip")
    assert source_of(other).signature is not None


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (b"", "model.bin is not a valid ONNX model"),
        (b"no model", "model.bin is not a valid ONNX model"),
        (b"\x7fELF...", "model.bin is a library of a compiled model; tvm_stitch.load takes the folder"),
    ],
)
def test_a_file_of_another_kind(tmp_path: Path, written: bytes, text: str) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(written)
    with pytest.raises(ValueError, match=text):
        tvm_stitch.compile(path, "llvm")


def test_sizes_that_only_onnx_runtime_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line and ``compile`` import such a model in the same way."""
    reasons: list[str] = []
    load = compare.load_onnx

    def only_folded(proto: onnx.ModelProto, *args: Any) -> Any:
        if any(node.op_type == "Shape" for node in proto.graph.node):
            reasons.append("Shape")
            raise UnsupportedModel("a computed shape")
        return load(proto, *args)

    monkeypatch.setattr(compare, "load_onnx", only_folded)
    compiled = tvm_stitch.compile(flattened([2, 3, 4]), "llvm")
    x = np.ones((2, 3, 4), "float32")
    np.testing.assert_array_equal(compiled(x), (x + x).reshape(2, 12))
    with pytest.raises(UnsupportedModel, match="a computed shape"):
        tvm_stitch.compile(flattened(["n", 3, 4]), "llvm")
    assert reasons == ["Shape"] * 2
