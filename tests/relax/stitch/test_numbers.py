# SPDX-License-Identifier: Apache-2.0
"""Constants of one element are numbers in the functions that stitch kernels call, exact in every type."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as S
from tvm.script import tirx as T

from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import LLVM, build, emulated, on_llvm
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.records.decisions import without_decisions
from tvm_stitch.relax import StitchOps, pipeline

NAN, INF = np.nan, np.inf
EXACT: dict[str, list[Any]] = {
    "float64": [NAN, -INF, -0.0, 1 / 3, 5e-324, 1e-20, 1.7e308],
    "float32": [NAN, INF, -0.0, 1 / 3, 1e-45, 3.4028235e38],
    "float16": [NAN, -INF, 1 / 3, 6e-8, 65504.0],
    "bfloat16": [NAN, INF, 1 / 3, 3.3895314e38, 1e-40],
    "int64": [-(2**63), 2**63 - 1, 2**53 + 1, -100],
    "uint64": [2**63 - 1, 2**64 - 1],
    "int32": [-(2**31), 2**31 - 1],
    "uint32": [2**32 - 1],
    "int8": [-128, 127],
    "uint8": [255],
    "bool": [True, False],
}
WITHOUT_LITERAL = {"uint64": [2**64 - 1]}


def constants_read(mod: tvm.IRModule, target: Any) -> list[Any]:
    """Return the constants that kernels are given."""
    found: list[Any] = []
    for block in pipeline(target)(mod)["main"].body.blocks:
        for binding in block.bindings:
            if isinstance(getattr(binding.value, "op", None), tvm.ir.GlobalVar):
                found += [a.value.numpy() for a in binding.value.args if isinstance(a, tvm.ir.GenericConst)]
    return found


def test_a_number_takes_the_place_of_a_parameter() -> None:
    @I.ir_module
    class Before:
        @T.prim_func(private=True, s_tir=True)
        def where(
            a: T.Buffer((T.int64(4),), "bool"),
            b: T.Buffer((T.int64(4),), "float32"),
            c: T.Buffer((), "float32"),
            d: T.Buffer((T.int64(4),), "float32"),
        ):
            for i in T.grid(T.int64(4)):
                with T.sblock("where"):
                    v = T.axis.spatial(T.int64(4), i)
                    d[v] = T.Select(a[v], b[v], c[()])

        @S.function
        def main(m: S.Tensor((4,), "bool"), x: S.Tensor((4,), "float32")):
            cls = Before
            with S.dataflow():
                y = S.call_tir(cls.where, (m, x, S.const(-2.5, "float32")), S.Tensor((4,), "float32"))
                S.output(y)
            return y

    @I.ir_module
    class After:
        @T.prim_func(private=True, s_tir=True)
        def where(
            a: T.Buffer((T.int64(4),), "bool"),
            b: T.Buffer((T.int64(4),), "float32"),
            c: T.Buffer((), "float32"),
            d: T.Buffer((T.int64(4),), "float32"),
        ):
            for i in T.grid(T.int64(4)):
                with T.sblock("where"):
                    v = T.axis.spatial(T.int64(4), i)
                    d[v] = T.Select(a[v], b[v], c[()])

        @T.prim_func(private=True, s_tir=True)
        def where1(
            a: T.Buffer((T.int64(4),), "bool"),
            b: T.Buffer((T.int64(4),), "float32"),
            d: T.Buffer((T.int64(4),), "float32"),
        ):
            for i in T.grid(T.int64(4)):
                with T.sblock("where"):
                    v = T.axis.spatial(T.int64(4), i)
                    d[v] = T.Select(a[v], b[v], T.float32(-2.5))

        @S.function(private=True)
        def stitch_where(m: S.Tensor((4,), "bool"), x: S.Tensor((4,), "float32")) -> S.Tensor(
            (4,), "float32"
        ):
            S.func_attr({"Primitive": True, "tvm_stitch.stitch_op": True})
            cls = After
            with S.dataflow():
                y = S.call_tir(cls.where1, (m, x), S.Tensor((4,), "float32"))
                S.output(y)
            return y

        @S.function
        def main(m: S.Tensor((4,), "bool"), x: S.Tensor((4,), "float32")):
            cls = After
            with S.dataflow():
                y: S.Tensor((4,), "float32") = cls.stitch_where(m, x)
                S.output(y)
            return y

    made = without_decisions(StitchOps()(Before))
    assert relax.analysis.check_well_formed(made)
    tvm.ir.assert_structural_equal(made, After)


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize("shape", [(), (1, 1)], ids=["scalar", "of one element"])
@pytest.mark.parametrize("dtype", EXACT)
def test_every_type_is_exact(run: Any, shape: tuple[int, ...], dtype: str) -> None:
    """All of a type's numbers in one kernel."""
    numbers = [np.array(v).astype(dtype).reshape(shape) for v in EXACT[dtype]]
    rng = np.random.default_rng(0)
    mask, x = rng.random((3, 33)) > 0.5, rng.integers(0, 2, (3, 33)).astype(dtype)

    def body(_emit: Any, m: Any, v: Any) -> list[Any]:
        return [R.where(m, v, relax.const(number, dtype)) for number in numbers]

    mod = build(body, (mask.shape, "bool"), (x.shape, dtype))
    for got, number in zip(run(mod, mask, x), numbers, strict=True):
        want = np.where(mask, x, number)
        assert got.dtype == want.dtype
        if number != number:
            np.testing.assert_array_equal(np.isnan(got.astype("float64")), ~mask)
            continue
        bits = f"u{want.itemsize}"
        np.testing.assert_array_equal(got.view(bits), want.view(bits))
    assert [int(n.item()) for n in constants_read(mod, LLVM)] == WITHOUT_LITERAL.get(dtype, [])


@pytest.mark.parametrize("run", [on_llvm, emulated])
def test_a_number_that_several_read_and_the_function_gives(run: Any) -> None:
    least = relax.const(np.float32(-INF))

    def body(emit: Any, m: Any, v: Any) -> list[Any]:
        own = emit(least)
        hidden = emit(R.where(m, own, v))
        return [R.nn.softmax(hidden), R.where(m, v, own), own, least, R.max(emit(R.where(m, least, v)), 1)]

    mask = np.arange(60).reshape(4, 15) % 7 == 2
    x = np.random.default_rng(0).standard_normal((4, 15)).astype("float32")
    mod = build(body, (mask.shape, "bool"), (x.shape, "float32"))
    hidden = np.where(mask, -INF, x.astype("float64"))
    grown = np.exp(hidden - hidden.max(1, keepdims=True))
    wanted = [grown / grown.sum(1, keepdims=True), np.where(mask, x, -INF), -INF, -INF, hidden.max(1)]
    for got, want in zip(run(mod, mask, x), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6)
    for target in (LLVM, emulated_target()):
        assert constants_read(mod, target) == []
        assert count_kernels(mod, target, pipeline(target)).total == 1


@pytest.mark.parametrize("run", [on_llvm, emulated])
def test_zeros_of_products_and_quotients_are_read(run: Any) -> None:
    """TVM's simplifier would lose their results of infinities and NaN. Other zeros are numbers."""
    zero = relax.const(np.zeros((1, 1), "float32"))

    def body(_emit: Any, v: Any) -> list[Any]:
        return [R.multiply(v, zero), R.divide(v, zero), R.maximum(v, zero)]

    x = np.array([[NAN, INF, -INF, 2, -2, 0]], "float32")
    mod = build(body, (x.shape, "float32"))
    with np.errstate(invalid="ignore", divide="ignore"):
        wanted = [x * 0, x / np.float32(0), np.maximum(x, 0)]
    for got, want in zip(run(mod, x), wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    assert len(constants_read(mod, LLVM)) == 1
    alone = build(lambda _emit, v: R.maximum(v, zero), (x.shape, "float32"))
    assert constants_read(alone, LLVM) == []


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_zeros_of_sums_are_read(run: Any, dtype: str) -> None:
    """Their signs count."""
    plus, minus = (relax.const(np.full((1,), zero), dtype) for zero in (0.0, -0.0))

    def body(_emit: Any, v: Any) -> list[Any]:
        return [R.add(v, plus), R.subtract(v, minus)]

    x = np.array([-0.0, 0.0, 1.5], dtype)
    for got in run(build(body, (x.shape, dtype)), x):
        np.testing.assert_array_equal(got, x)
        assert not np.signbit(got).any()


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize("name", ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"])
def test_the_least_int32_is_compared_with(run: Any, name: str) -> None:
    x = np.array([-(2**31), 1 - 2**31, -1, 0, 2**31 - 1], "int32")
    least = x[:1]

    def body(_emit: Any, v: Any) -> list[Any]:
        compared = getattr(R, name)
        return [compared(v, relax.const(least)), compared(relax.const(least), v)]

    compared = getattr(np, name)
    wanted = [compared(x, least), compared(least, x)]
    for got, want in zip(run(build(body, (x.shape, "int32")), x), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("run", [on_llvm, emulated])
def test_an_index_and_an_exponent(run: Any) -> None:
    """A constant index is no gather, and a power of a known exponent is products."""
    at, three = relax.const(np.array([6], "int64")), relax.const(np.full((1, 1), 3, "float32"))
    x = np.random.default_rng(0).standard_normal((5, 9)).astype("float32")
    mod = build(lambda emit, v: R.power(emit(R.take(v, at, axis=1)), three), (x.shape, "float32"))
    np.testing.assert_allclose(run(mod, x)[0], x[:, [6]].astype("float64") ** 3, rtol=1e-6)
    assert constants_read(mod, LLVM) == []
