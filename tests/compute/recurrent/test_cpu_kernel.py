# SPDX-License-Identifier: Apache-2.0
"""The kernel of a recurrent layer on a CPU: its code, and barriers between threads that divide the units."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

from tests.compute.recurrent.reference import cell_of, draw, layer_in_float64
from tvm_stitch.compute.recurrent.cell import Layer
from tvm_stitch.compute.recurrent.cpu_kernel import Tiling, recurrent_kernel, scratch_rows, weights_shape
from tvm_stitch.target import resolve_target

STEPS = 6
TARGET = resolve_target("native")


def _module(layer: Layer, tiling: Tiling) -> tvm.IRModule:
    steps, batch = (tirx.Var(name, "int64") for name in ("steps", "batch"))
    func = recurrent_kernel(layer, tiling, steps, batch)
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def _packed(weights: Any, layer: Layer, tiling: Tiling) -> Any:
    """Return weights <gates*hidden, depth> as <blocks, depth, gates, units>."""
    cell = layer.cell
    whole = np.zeros((cell.gates, tiling.padded(cell), weights.shape[1]), "float32")
    whole[:, : cell.hidden] = weights.reshape(cell.gates, cell.hidden, -1)
    blocks = whole.reshape(cell.gates, tiling.blocks(cell), tiling.units, -1)
    return np.ascontiguousarray(blocks.transpose(1, 3, 0, 2))


def _run(layer: Layer, tiling: Tiling, batch: int) -> tuple[list[Any], list[Any]]:
    """Return the kernel's results, and those of float64."""
    cell = layer.cell
    given = draw(layer, STEPS, batch, 5)
    w = _packed(given["w"], layer, tiling).transpose(1, 0, 2, 3).reshape(5, -1)
    bias = _packed(given["bias"][:, None], layer, tiling).reshape(-1)
    r = _packed(given["r"], layer, tiling)
    r = r.transpose(2, 0, 1, 3) if cell.two_products else r
    assert list(r.shape) == weights_shape(cell, tiling)
    arguments = [(given["x"] @ w + bias).astype("float32"), r, given["h"]]
    arguments += [given["c"]] if cell.has_cell_state else []
    states = [(batch, cell.hidden)] * (1 + cell.has_cell_state)
    shapes = [(STEPS, batch, cell.hidden), *states, (scratch_rows(cell), batch, tiling.padded(cell))]
    results = [tvm.runtime.tensor(np.full(shape, np.nan, "float32")) for shape in shapes]
    function = tvm.compile(_module(layer, tiling), target=TARGET)["main"]
    function(*(tvm.runtime.tensor(np.ascontiguousarray(a)) for a in arguments), *results)
    return [each.numpy() for each in results[:-1]], layer_in_float64(layer, given)


@pytest.mark.parametrize("by_units", [False, True])
@pytest.mark.parametrize(
    ("kind", "hidden", "units", "batch"), [("lstm", 37, 16, 1), ("lstm", 32, 8, 5), ("gru", 24, 8, 6)]
)
def test_tasks(kind: str, hidden: int, units: int, batch: int, by_units: bool) -> None:
    tiling = Tiling(8, units, 4, by_units, 0)
    found, wanted = _run(Layer(cell_of(kind, hidden)), tiling, batch)
    for a, b in zip(found, wanted, strict=True):
        assert np.allclose(a, b, rtol=0, atol=1e-6)


def test_products_and_cells_are_vectors() -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "opt-level": 0})
    code = tvm.compile(_module(Layer(cell_of("lstm", 32)), Tiling(8, 8, 4, False, 0)), target=target)
    text = code.mod.inspect_source("ll") if hasattr(code, "mod") else code.inspect_source("ll")
    assert text.count("store <8 x float>") > 100
    assert "tanhf" not in text and "expf" not in text


def test_code_of_a_kernel_does_not_grow_with_hidden_units() -> None:
    lengths = [len(_module(Layer(cell_of("lstm", n)), Tiling(8, 8, 4, False, 0)).script()) for n in (64, 512)]
    assert lengths[1] < lengths[0] * 1.1
