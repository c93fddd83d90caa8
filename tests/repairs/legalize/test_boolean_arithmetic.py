# SPDX-License-Identifier: Apache-2.0
"""Arithmetic, comparisons and reductions of booleans, which TVM does not compile for a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as Rx

import tvm_stitch
from tests.graph.helpers import LLVM, build, emulated, on_llvm
from tests.repairs import faults
from tvm_stitch.repairs.legalize.boolean_arithmetic import LOGIC
from tvm_stitch.repairs.legalize.mend import MendImports

SHAPE = (5, 9)
NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.logical_or,
    "maximum": np.logical_or,
    "multiply": np.logical_and,
    "minimum": np.logical_and,
    "not_equal": np.not_equal,
    "equal": np.equal,
    "less": np.less,
    "greater": np.greater,
    "less_equal": np.less_equal,
    "greater_equal": np.greater_equal,
}


def drawn(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.random(SHAPE) < 0.4 for _ in range(count)]


def of_two(name: str) -> Any:
    return build(lambda emit, x, y: getattr(R, name)(x, y), (SHAPE, "bool"), (SHAPE, "bool"))


def test_all_operators_are_tested() -> None:
    assert {f"relax.{name}" for name in NUMPY} == set(LOGIC)


@pytest.mark.parametrize("name", NUMPY)
def test_tvm_still_fails(name: str) -> None:
    """When this fails, TVM has learnt it: take it out of ``LOGIC``."""
    with pytest.raises(Exception, match="kDLFloat|LLVM module verification"):
        tvm.compile(of_two(name), LLVM)


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize("name", NUMPY)
def test_operators_of_two(run: Any, name: str) -> None:
    x, y = drawn(2)
    (got,) = run(of_two(name), x, y)
    np.testing.assert_array_equal(got, NUMPY[name](x, y))
    assert got.dtype == "bool"


@pytest.mark.parametrize("run", [on_llvm, emulated])
def test_isfinite_as_pytorch_takes_it_apart(run: Any) -> None:
    def body(emit: Any, x: Any) -> Any:
        bounded = emit(R.not_equal(emit(R.abs(x)), relax.const(np.inf, "float32")))
        return R.multiply(emit(R.equal(x, x)), bounded)

    x = np.array([[1.0, np.inf, -np.inf], [np.nan, 0.0, -2.0]], "float32")
    (got,) = run(build(body, (x.shape, "float32")), x)
    np.testing.assert_array_equal(got, np.isfinite(x))


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_reductions(run: Any, name: str) -> None:
    (x,) = drawn(1)
    (got,) = run(build(lambda emit, v: getattr(R, name)(v, 1), (SHAPE, "bool")), x)
    np.testing.assert_array_equal(got, getattr(x, name)(1))


def test_sorting() -> None:
    (x,) = drawn(1)
    for sort in (R.sort, R.argsort):
        executable = tvm_stitch.compile(build(lambda emit, v, sort=sort: sort(v, 1), (SHAPE, "bool")), LLVM)
        got = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x))
        found = got.numpy() if sort is R.sort else np.take_along_axis(x, got.numpy().astype("int64"), 1)
        np.testing.assert_array_equal(found, np.sort(x, 1))


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize("largest", [True, False])
def test_the_first_of_a_row(run: Any, largest: bool) -> None:
    (x,) = drawn(1)
    values, places = run(build(lambda emit, v: R.topk(v, 1, 1, largest=largest), (SHAPE, "bool")), x)
    wanted = (x.max if largest else x.min)(1, keepdims=True)
    np.testing.assert_array_equal(values, wanted)
    np.testing.assert_array_equal(np.take_along_axis(x, places.astype("int64"), 1), wanted)


@I.ir_module
class Before:
    @Rx.function
    def main(
        x: Rx.Tensor((4,), "bool"), y: Rx.Tensor((4,), "bool"), z: Rx.Tensor((4,), "float32")
    ) -> Rx.Tuple(Rx.Tensor((4,), "bool"), Rx.Tensor((4,), "float32"), Rx.Tensor((), "bool")):
        with Rx.dataflow():
            same = Rx.equal(x, y)
            sums = Rx.add(z, z)
            most = Rx.max(same)
            result = (same, sums, most)
            Rx.output(result)
        return result


@I.ir_module
class After:
    @Rx.function
    def main(
        x: Rx.Tensor((4,), "bool"), y: Rx.Tensor((4,), "bool"), z: Rx.Tensor((4,), "float32")
    ) -> Rx.Tuple(Rx.Tensor((4,), "bool"), Rx.Tensor((4,), "float32"), Rx.Tensor((), "bool")):
        with Rx.dataflow():
            other = Rx.logical_xor(x, y)
            same = Rx.logical_not(other)
            sums = Rx.add(z, z)
            bytes_ = Rx.astype(same, "int8")
            greatest = Rx.max(bytes_)
            most = Rx.astype(greatest, "bool")
            result = (same, sums, most)
            Rx.output(result)
        return result


def test_only_booleans_are_rewritten() -> None:
    tvm.ir.assert_structural_equal(MendImports()(Before), After)


def test_fault() -> None:
    mod = of_two("add")
    faults.needed(faults.raises(lambda: tvm.compile(mod, LLVM)), "legalize/boolean_arithmetic.py")


def test_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = of_two("add")
    assert tvm_stitch.compile(mod, LLVM)
    monkeypatch.delitem(faults.module_of("repairs.legalize.mend").MENDED, "relax.add")
    assert faults.raises(lambda: tvm_stitch.compile(mod, LLVM))
