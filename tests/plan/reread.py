# SPDX-License-Identifier: Apache-2.0
"""Graphs whose later phases read an input again, as ``tests.graph.helpers.build`` takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.relax import op as R


def column_softmax(emit: Callable[..., Any], x: Any) -> Any:
    """Softmax over axis 0: three readings."""
    e = emit(R.exp(emit(R.subtract(x, emit(R.max(x, 0, True))))))
    return emit(R.divide(e, emit(R.sum(e, 0, True))))


def gradient(emit: Callable[..., Any], x: Any, dy: Any) -> Any:
    """Compute a sum over axis 0 of two inputs, and both again with it, as in batch norm's gradient."""
    along = emit(R.sum(emit(R.multiply(x, dy)), 0, True))
    return [along, emit(R.subtract(dy, emit(R.multiply(x, along))))]
