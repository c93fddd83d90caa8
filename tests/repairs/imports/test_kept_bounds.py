# SPDX-License-Identifier: Apache-2.0
"""Sizes above those that a function declares are errors that name both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tests.repairs import faults
from tvm_stitch.repairs.imports.kept_bounds import MOST, KeptBounds

N = symbol("n")
MANY = 5000
"""Rows that the memory planned for four does not hold. The virtual machine rounds it up to 4096 bytes."""


def bounded(most: int) -> tvm.IRModule:
    weight = relax.const(np.eye(3, dtype="float32"))
    mod = build(lambda emit, x: R.matmul(emit(R.matmul(x, weight)), weight), ((N, 3), "float32"))
    return tvm.IRModule({"main": mod["main"].with_attr(MOST, {"n": most})})


def of_rows(rows: int, passes: Any) -> str:
    """Return the error of a run with so many rows, or nothing."""
    x = np.ones((rows, 3), "float32")
    try:
        (result,) = faults.on_cpu(bounded(4), [x], passes)
    except (RuntimeError, tvm.error.InternalError) as error:
        return str(error)
    np.testing.assert_array_equal(result, x)
    return ""


def test_functions_without_bounds_stay() -> None:
    mod = build(lambda emit, x: R.exp(x), ((N,), "float32"))
    assert KeptBounds()(mod).same_as(mod)
    unbounded = bounded(-1)
    tvm.ir.assert_structural_equal(KeptBounds()(unbounded), unbounded)


def test_the_check_is_first() -> None:
    (check,) = KeptBounds()(bounded(4))["main"].body.blocks[0].bindings
    assert isinstance(check, relax.MatchCast) and str(check.var.name) == "n_kept"


@pytest.mark.parametrize("rows", [1, 4])
def test_sizes_within(rows: int) -> None:
    assert of_rows(rows, faults.ours(faults.LLVM)) == ""


def test_fault() -> None:
    faults.needed("storage allocation failure" in of_rows(MANY, None), "imports/kept_bounds.py")


def test_repair() -> None:
    assert f"({MANY} vs. 4)" in of_rows(MANY, faults.ours(faults.LLVM))
    assert "(5 vs. 4)" in of_rows(5, faults.ours(faults.LLVM))
    with faults.without("KeptBounds"):
        assert "storage allocation failure" in of_rows(MANY, faults.ours(faults.LLVM))
