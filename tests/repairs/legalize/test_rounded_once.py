# SPDX-License-Identifier: Apache-2.0
"""Operators within which TVM rounds half types have results that are rounded once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as RS

from tests.graph.helpers import build, emulated, on_llvm
from tests.repairs import faults
from tvm_stitch.repairs.legalize.wide_operators import RoundedOnce

X = (np.random.default_rng(0).standard_normal((5, 7, 33)) * 3).astype("float16")


def gelu(x: np.ndarray) -> np.ndarray:
    wide = x.astype("float64")
    return wide * 0.5 * (1 + np.vectorize(math.erf)(wide / math.sqrt(2)))


def layer_norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    wide = x.astype("float64")
    center = wide - wide.mean(-1, keepdims=True)
    return center / np.sqrt((center**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


OPERATORS: dict[str, tuple[Any, Any, int]] = {
    "gelu": (R.nn.gelu, gelu, 0),
    "layer_norm": (lambda x, scale, shift: R.nn.layer_norm(x, scale, shift, axes=[-1]), layer_norm, 2),
}


def module(name: str) -> tuple[tvm.IRModule, list[np.ndarray], np.ndarray]:
    call, exact, rows = OPERATORS[name]
    others = [np.random.default_rng(i).standard_normal(33).astype("float16") for i in range(rows)]
    specs = [(each.shape, "float16") for each in (X, *others)]
    return build(lambda emit, *given: call(*given), *specs), [X, *others], exact(X, *others)


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize("name", OPERATORS)
def test_results_are_rounded_once(name: str, run: Any) -> None:
    mod, given, exact = module(name)
    (got,) = run(mod, *given)
    best = np.abs(exact.astype("float16").astype("float64") - exact)
    error = np.abs(got.astype("float64") - exact)
    assert np.sqrt((error**2).mean()) < 1.02 * np.sqrt((best**2).mean())
    assert error.max() < 1.02 * best.max()


def test_only_of_half_types() -> None:
    @I.ir_module
    class Before:
        @RS.function
        def main(x: RS.Tensor((4,), "float32"), y: RS.Tensor((4,), "float16")) -> RS.Tuple(
            RS.Tensor((4,), "float32"), RS.Tensor((4,), "float16")
        ):
            with RS.dataflow():
                a = RS.nn.gelu(x)
                b = RS.nn.gelu(y)
                result = (a, b)
                RS.output(result)
            return result

    @I.ir_module
    class After:
        @RS.function
        def main(x: RS.Tensor((4,), "float32"), y: RS.Tensor((4,), "float16")) -> RS.Tuple(
            RS.Tensor((4,), "float32"), RS.Tensor((4,), "float16")
        ):
            with RS.dataflow():
                a = RS.nn.gelu(x)
                operand = RS.astype(y, "float32")
                wide = RS.nn.gelu(operand)
                b = RS.astype(wide, "float16")
                result = (a, b)
                RS.output(result)
            return result

    tvm.ir.assert_structural_equal(RoundedOnce()(Before), After)


def is_off(passes: Any) -> bool:
    mod, given, exact = module("gelu")
    got = faults.on_cpu(mod, given, passes)[0].astype("float64")
    best = np.abs(exact.astype("float16").astype("float64") - exact).max()
    return bool(np.abs(got - exact).max() > 1.1 * best)


def test_fault() -> None:
    faults.needed(is_off(None), "legalize/wide_operators.py")


def test_repair() -> None:
    assert not is_off(faults.ours(faults.LLVM))
    with faults.without("RoundedOnce"):
        assert is_off(faults.ours(faults.LLVM))
