# SPDX-License-Identifier: Apache-2.0
"""Operators whose number of results is only known at run time."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from ..node import ANY, Conversion, Node, positive


def _unique(node: Node) -> tuple[Any, ...]:
    """Return unique elements, or slices along an axis. Without axis the input is flat, which TVM leaves out."""
    x, given = node.tensor(0), node.attributes
    rank = len(node.shape(0))
    if "axis" not in given and rank != 1:
        x = node.emit(relax.op.reshape(x, [-1]))
    attributes = {"sorted": given["sorted"], "tvm_custom": {"num_outputs": len(node.outputs)}}
    if "axis" in given and rank > 1:
        attributes["axis"] = positive(given["axis"], rank)
    result = onnx_frontend.Unique._impl_v11(node.bb, [x], attributes, [{}, {}])
    return tuple(result.fields) if isinstance(result, relax.Tuple) else (result,)


CONVERSIONS = {("", "Unique"): Conversion(_unique, {"axis": ANY, "sorted": ANY})}
