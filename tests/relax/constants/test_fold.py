# SPDX-License-Identifier: Apache-2.0
"""Constants are folded as kernels compute, and functions of the module stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tvm_stitch.relax.constants.fold import FoldConstants


def folded(made: Any) -> tuple[np.ndarray, tvm.IRModule, tvm.IRModule]:
    """Return the result of folding an expression of constants, and the module before and after."""
    mod = build(lambda emit, x: [R.exp(x), made(emit)], ((3,), "float32"))
    mod = relax.transform.LegalizeOps()(mod)
    after = FoldConstants()(mod)
    found: list[np.ndarray] = []

    def visit(e: Any) -> None:
        if isinstance(e, tvm.ir.GenericConst):
            found.append(e.value.numpy())

    relax.analysis.post_order_visit(after["main"], visit)
    return found[-1], mod, after


def test_nan_stays() -> None:
    def made(emit: Any) -> Any:
        x = relax.const(np.array([np.nan, 7, -1], "float32"))
        return emit(R.clip(emit(R.negative(x)), -6, 6))

    result, before, after = folded(made)
    np.testing.assert_array_equal(result, np.array([np.nan, -6, 1], "float32"))
    for gvar, func in before.functions_items():
        if gvar.name_hint != "main":
            tvm.ir.assert_structural_equal(after[gvar.name_hint], func)


def test_casts_wrap_around() -> None:
    def made(emit: Any) -> Any:
        x = relax.const(np.array([65535], "uint16"))
        return emit(R.floor_divide(emit(R.astype(x, "int16")), relax.const(np.array([7], "int16"))))

    assert folded(made)[0] == -1
