# SPDX-License-Identifier: Apache-2.0
"""Operators that TVM does not lower for bfloat16 are computed in float32, and give what they would give."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as RS

import tvm_stitch
from tests.graph.helpers import build
from tests.repairs import faults
from tvm_stitch.repairs.legalize.wide_operators import WideOperators

BF16 = np.dtype(ml_dtypes.bfloat16)
X = np.random.default_rng(0).standard_normal((2, 4, 3, 6)).astype(BF16)
SCALE, SHIFT = (np.random.default_rng(i).standard_normal(4).astype(BF16) for i in (1, 2))


def scaled(x: Any, scale: np.ndarray, shift: np.ndarray, axes: tuple[int, ...], like: Any) -> Any:
    wide, center = x.astype("float64"), x.astype("float64").mean(axes, keepdims=True)
    normal = (wide - center) / np.sqrt(((wide - center) ** 2).mean(axes, keepdims=True) + 1e-5)
    return normal * scale.astype("float64").reshape(like) + shift.astype("float64").reshape(like)


def const(a: np.ndarray) -> Any:
    return relax.const(a, "bfloat16")


OPERATORS = {
    "layer_norm": (
        lambda x: R.nn.layer_norm(x, const(X[0, 0, 0]), const(X[0, 0, 1]), axes=[-1]),
        lambda x: scaled(x, X[0, 0, 0], X[0, 0, 1], (-1,), (6,)),
    ),
    "instance_norm": (
        lambda x: R.nn.instance_norm(x, const(SCALE), const(SHIFT), channel_axis=1, axes=[2, 3]),
        lambda x: scaled(x, SCALE, SHIFT, (2, 3), (4, 1, 1)),
    ),
    "power": (
        lambda x: R.power(R.abs(x), x),
        lambda x: np.abs(x.astype("float64")) ** x.astype("float64"),
    ),
    "argmax": (lambda x: R.argmax(x, -1), lambda x: x.argmax(-1)),
    "argmin": (lambda x: R.argmin(x, -1), lambda x: x.argmin(-1)),
}


@pytest.mark.parametrize("target", ["llvm", "cuda"])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str, target: str) -> None:
    call, expected = OPERATORS[name]
    mod = build(lambda emit, x: [call(x)], (X.shape, "bfloat16"))
    executable = tvm_stitch.compile(mod, target)
    if target == "cuda":  # which needs a device to run
        return
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(X)).numpy()
    wide = expected(X)
    assert str(result.dtype) == ("int64" if "arg" in name else "bfloat16")
    assert (np.abs(result.astype("float64") - wide) <= 2.0**-8 * np.abs(wide) + 1e-6).all()


def test_only_of_bfloat16() -> None:
    @I.ir_module
    class Before:
        @RS.function
        def main(x: RS.Tensor((4,), "bfloat16"), y: RS.Tensor((4,), "float16")) -> RS.Tuple(
            RS.Tensor((4,), "bfloat16"), RS.Tensor((4,), "float16")
        ):
            with RS.dataflow():
                a = RS.power(x, x)
                b = RS.power(y, y)
                result = (a, b)
                RS.output(result)
            return result

    @I.ir_module
    class After:
        @RS.function
        def main(x: RS.Tensor((4,), "bfloat16"), y: RS.Tensor((4,), "float16")) -> RS.Tuple(
            RS.Tensor((4,), "bfloat16"), RS.Tensor((4,), "float16")
        ):
            with RS.dataflow():
                base = RS.astype(x, "float32")
                exponent = RS.astype(x, "float32")
                wide = RS.power(base, exponent)
                a = RS.astype(wide, "bfloat16")
                b = RS.power(y, y)
                result = (a, b)
                RS.output(result)
            return result

    tvm.ir.assert_structural_equal(WideOperators()(Before), After)


def position() -> tvm.IRModule:
    return build(lambda emit, x: R.argmax(x, -1), ((4, 6), "bfloat16"))


def test_fault() -> None:
    faults.needed(faults.raises(lambda: tvm.compile(position(), "llvm")), "legalize/wide_operators.py")


def test_repair() -> None:
    assert tvm_stitch.compile(position(), "llvm")
    with faults.without("WideOperators"):
        assert faults.raises(lambda: tvm_stitch.compile(position(), "llvm"))
