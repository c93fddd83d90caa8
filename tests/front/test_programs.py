# SPDX-License-Identifier: Apache-2.0
"""Models of PyTorch in another floating type: parameters, buffers and inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tvm_stitch
from tests.front.test_sources import onnx_model
from tvm_stitch.front.sources import source_of


class Model(torch.nn.Module):
    """Looks up numbers, and has a cast, whose type the export holds."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(7, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.register_buffer("shift", torch.randn(8))

    def forward(self, ids: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        return self.norm(self.table(ids) * scale) + self.shift.to(scale.dtype)


def inputs() -> dict[str, torch.Tensor]:
    return {"ids": torch.randint(0, 7, (3, 2)), "scale": torch.randn(3, 1, 1)}


@pytest.mark.parametrize("dtype", ["float16", torch.bfloat16])
@pytest.mark.parametrize("as_program", [False, True])
def test_floating_parameters_and_inputs(dtype: Any, as_program: bool) -> None:
    model, given = Model(), {**inputs(), "ids": torch.randint(0, 7, (3, 2))}
    batch = torch.export.Dim("batch")
    shapes = {"ids": {0: batch}, "scale": {0: batch}}
    if as_program:
        program: Any = torch.export.export(model, (), given, dynamic_shapes=shapes, strict=False)
        compiled = tvm_stitch.compile(program, "llvm", dtype=dtype)
        assert next(program.parameters()).dtype == torch.float32
    else:
        compiled = tvm_stitch.compile(model, "llvm", example_inputs=given, dynamic_shapes=shapes, dtype=dtype)
    assert next(model.parameters()).dtype == torch.float32
    name = str(dtype).removeprefix("torch.")
    assert [spec.dtype for spec in compiled.inputs] == ["int64", name]
    half: torch.dtype = getattr(torch, name)
    ids, scale = torch.randint(0, 7, (5, 2)), torch.randn(5, 1, 1).to(half)
    found = compiled(ids, scale=scale)
    assert found.dtype == half
    wanted = model.to(half)(ids, scale=scale)
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    with pytest.raises(
        TypeError, match="the input scale: .* was given a tensor of float32; convert it first"
    ):
        compiled(ids, scale=scale.float())


def test_files_of_programs(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.randn(4, 3),))
    torch.export.save(program, tmp_path / "linear.pt2")
    source = source_of(tmp_path / "linear.pt2", dtype="float16")
    assert source.signature is not None
    assert [spec.dtype for spec in (*source.signature.inputs, *source.signature.outputs)] == ["float16"] * 2


def test_a_program_that_holds_its_types_is_refused() -> None:
    class Turned(torch.nn.Module):
        def forward(self, q: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            turned = q * positions.float().cos().to(q.dtype)
            return torch.nn.functional.scaled_dot_product_attention(turned, turned, q)

    given = torch.randn(1, 1, 4, 8), torch.arange(8)
    compiled = tvm_stitch.compile(Turned(), "llvm", example_inputs=given, dtype="bfloat16")
    assert [spec.dtype for spec in compiled.outputs] == ["bfloat16"]
    program = torch.export.export(Turned(), given)
    with pytest.raises(
        ValueError, match="in bfloat16: .*same dtype.*; give the module itself, or export it in this"
    ):
        tvm_stitch.compile(program, "llvm", dtype="bfloat16")


def test_types_and_models_that_are_refused(tmp_path: Path) -> None:
    linear: dict[str, Any] = {"example_inputs": torch.randn(4, 3)}
    with pytest.raises(ValueError, match="dtype must be one of 'float16', 'bfloat16', 'float32', not 'int8'"):
        tvm_stitch.compile(torch.nn.Linear(3, 2), "llvm", dtype="int8", **linear)
    with pytest.raises(TypeError, match="dtype='float16' is for models of PyTorch, not for an ONNX model"):
        tvm_stitch.compile(onnx_model(), "llvm", dtype="float16")
    mod = source_of(torch.nn.Linear(3, 2), torch.randn(4, 3)).mod
    with pytest.raises(TypeError, match="not for a Relax IRModule; in_half_precision"):
        tvm_stitch.explain(mod, "llvm", dtype="float16")

    class Narrow(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.dtype != torch.float32:
                raise ValueError("float32 alone")
            return x + 1

    with pytest.raises(
        ValueError, match="torch.export does not export the module in float16: .*float32 alone"
    ):
        tvm_stitch.compile(Narrow(), "llvm", dtype="float16", **linear)


def test_symbols_have_the_names_that_dim_gives() -> None:
    class Pair(torch.nn.Module):
        def forward(self, x: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor]) -> Any:
            return torch.softmax(x + pair[0], -1), pair[1] * 2

    batch, time = torch.export.Dim("batch"), torch.export.Dim("time", min=2)
    axes, last = {0: batch, 1: time}, {0: torch.export.Dim("n")}
    given = torch.randn(2, 3, 4), (torch.randn(2, 3, 4), torch.randn(5))
    named = {"pair": given[1], "x": given[0]}
    for inputs, dims in (
        (given, (axes, (axes, last))),
        (given, {"pair": (axes, last), "x": axes}),
        (named, {"pair": (axes, last), "x": axes}),
    ):
        compiled = tvm_stitch.compile(Pair(), "llvm", example_inputs=inputs, dynamic_shapes=dims)
        rows, numbers = ("batch", "time", 4), ("n",)
        expected = {"x": rows, "pair_0": rows, "pair_1": numbers}
        assert {spec.name: spec.shape for spec in compiled.inputs} == expected
        assert [spec.shape for spec in compiled.outputs] == [rows, numbers]
    x = torch.randn(3, 5, 4)
    softmax, doubled = compiled(x=x, pair=(x, torch.ones(6)))
    torch.testing.assert_close(softmax, torch.softmax(x + x, -1))
    torch.testing.assert_close(doubled, torch.full((6,), 2.0))


def test_hints_name_no_symbol() -> None:
    module, auto = torch.nn.Linear(4, 3), torch.export.Dim.AUTO
    compiled = tvm_stitch.compile(
        module, "llvm", example_inputs=torch.randn(2, 4), dynamic_shapes=((auto, None),)
    )
    assert compiled.inputs[0].shape[1] == 4 and isinstance(compiled.inputs[0].shape[0], str)
