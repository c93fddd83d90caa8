# SPDX-License-Identifier: Apache-2.0
"""The page of honoured operators lists both tables."""

from __future__ import annotations

from tvm_stitch.importers.onnx.converters import CONVERSIONS
from tvm_stitch.importers.onnx.honoured.page import page
from tvm_stitch.importers.onnx.honoured.stock import STOCK


def test_every_operator_has_a_row() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert len(rows) == len({*CONVERSIONS, *(("", op) for op in STOCK)})
    assert "| `LeakyRelu` | 6 | `alpha` | TVM |" in rows
    assert "| `Gelu` | 1 | `approximate` (`none` or `tanh`) | tvm_stitch |" in rows
