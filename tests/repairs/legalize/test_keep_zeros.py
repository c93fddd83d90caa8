# SPDX-License-Identifier: Apache-2.0
"""KeepZeros: zeros of float products, quotients and remainders become variables. Nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import relax as R

from tests.graph.helpers import build
from tests.repairs import faults
from tvm_stitch.repairs.legalize.keep_zeros import KeepZeros


def test_zeros_of_products_and_quotients_are_bound() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((8,), "float32"), n: R.Tensor((8,), "int32")):
            with R.dataflow():
                a = R.multiply(x, R.const(0, "float32"))
                b = R.divide(R.const(0, "float32"), a)
                c = R.add(b, R.const(0, "float32"))
                d = R.multiply(c, R.const(2, "float32"))
                e = R.multiply(n, R.const(0, "int32"))
                f = R.floor_mod(d, R.const(0, "float32"))
                R.output(e, f)
            return (e, f)

    @I.ir_module
    class After:
        @R.function
        def main(x: R.Tensor((8,), "float32"), n: R.Tensor((8,), "int32")):
            with R.dataflow():
                zero = R.const(0, "float32")
                a = R.multiply(x, zero)
                other = R.const(0, "float32")
                b = R.divide(other, a)
                c = R.add(b, R.const(0, "float32"))
                d = R.multiply(c, R.const(2, "float32"))
                e = R.multiply(n, R.const(0, "int32"))
                last = R.const(0, "float32")
                f = R.floor_mod(d, last)
                R.output(e, f)
            return (e, f)

    tvm.ir.assert_structural_equal(KeepZeros()(Before), After)


def is_nan(passes: Any) -> bool:
    """Return whether an infinity times zero is NaN."""
    mod = build(lambda emit, x: op.multiply(x, relax.const(0.0)), ((4,), "float32"))
    return bool(np.isnan(faults.on_cpu(mod, [np.full(4, np.inf, "float32")], passes)[0]).all())


def test_fault() -> None:
    faults.needed(not is_nan(None), "legalize/keep_zeros.py")


def test_repair() -> None:
    assert is_nan(faults.ours(faults.LLVM))
    with faults.without("KeepZeros"):
        assert not is_nan(faults.ours(faults.LLVM))
