# SPDX-License-Identifier: Apache-2.0
"""Modules with recurrent layers and loops, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_stitch.compute.recurrent.cell import Layer
from tvm_stitch.relax.loops.recurrent import recurrent

WEIGHTS = ("w", "r", "bias", "peepholes", "product_bias", "projection")


def layer_module(layer: Layer, given: Mapping[str, Any], steps: int | None = None) -> tvm.IRModule:
    """Return a module of one layer with constant weights. Its length, if not given, and its batch are symbolic."""
    builder = relax.BlockBuilder()
    length = tirx.Var("steps", "int64") if steps is None else steps
    batch = tirx.Var("batch", "int64")
    cell = layer.cell
    shapes = {
        "x": [length, batch, given["x"].shape[2]],
        "h": [batch, cell.state],
        "c": [batch, cell.hidden],
        "lengths": [batch],
    }
    params = {
        name: relax.Var(name, relax.TensorType(shapes[name], str(given[name].dtype)))
        for name in layer.operands
        if name not in WEIGHTS
    }
    constants = {
        name: relax.const(given[name], str(given[name].dtype)) for name in layer.operands if name in WEIGHTS
    }
    with builder.function("main", list(params.values())):
        with builder.dataflow():
            results = recurrent(builder, layer, params | constants)
            result = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(result)
    mod = builder.get()
    relax.analysis.well_formed(mod)
    return mod


def arguments(layer: Layer, given: Mapping[str, Any]) -> list[Any]:
    """Return the tensors that such a module takes."""
    return [tvm.runtime.tensor(np.ascontiguousarray(given[n])) for n in layer.operands if n not in WEIGHTS]


def run(executable: Any, args: Sequence[Any]) -> list[Any]:
    """Run ``main`` and return its results as a list."""
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*args)
    return [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
