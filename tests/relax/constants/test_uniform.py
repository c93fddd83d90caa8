# SPDX-License-Identifier: Apache-2.0
"""Constant folding gives one value as one element. A model's own constants stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as S
from tvm.script import tirx as T

from tests.graph.helpers import LLVM, build, emulated, on_llvm
from tests.relax.stitch.test_numbers import constants_read
from tvm_stitch.relax.constants.uniform import computed_of_scalars, with_single_values

SHAPE = (4, 8)


@I.ir_module
class Before:
    @T.prim_func(private=True, s_tir=True)
    def add(
        a: T.Buffer((T.int64(4), T.int64(8)), "float32"),
        b: T.Buffer((T.int64(4), T.int64(8)), "float32"),
        c: T.Buffer((T.int64(4), T.int64(8)), "float32"),
    ):
        T.func_attr({"op_pattern": 0})
        for i, j in T.grid(T.int64(4), T.int64(8)):
            with T.sblock("add"):
                v, w = T.axis.remap("SS", [i, j])
                T.reads(a[v, w], b[v, w])
                T.writes(c[v, w])
                c[v, w] = a[v, w] + b[v, w]

    @S.function
    def main(x: S.Tensor((4, 8), "float32"), k: S.Tensor((4, 8), "float32")):
        cls = Before
        with S.dataflow():
            y = S.call_tir(cls.add, (x, k), S.Tensor((4, 8), "float32"))
            S.output(y)
        return y


@I.ir_module
class After:
    @T.prim_func(private=True, s_tir=True)
    def add1(
        a: T.Buffer((T.int64(4), T.int64(8)), "float32"),
        b: T.Buffer((), "float32"),
        c: T.Buffer((T.int64(4), T.int64(8)), "float32"),
    ):
        T.func_attr({"op_pattern": 0})
        for i, j in T.grid(T.int64(4), T.int64(8)):
            with T.sblock("add"):
                v, w = T.axis.remap("SS", [i, j])
                T.reads(a[v, w], b[()])
                T.writes(c[v, w])
                c[v, w] = a[v, w] + b[()]

    @S.function
    def main(x: S.Tensor((4, 8), "float32")):
        cls = After
        with S.dataflow():
            y = S.call_tir(cls.add1, (x, S.const(1.5, "float32")), S.Tensor((4, 8), "float32"))
            S.output(y)
        return y


def given(constant: np.ndarray, pattern: int = 0) -> tvm.IRModule:
    mod = relax.transform.BindParams("main", {"k": constant})(Before)
    mod["add"] = mod["add"].with_attr("op_pattern", pattern)
    return mod


def narrowed(mod: tvm.IRModule) -> tvm.IRModule:
    (binding,) = mod["main"].body.blocks[0].bindings
    return with_single_values(mod, {binding.var: [1]})


def test_a_parameter_of_one_element() -> None:
    made = relax.transform.DeadCodeElimination()(narrowed(given(np.full(SHAPE, 1.5, "float32"))))
    assert relax.analysis.check_well_formed(made)
    tvm.ir.assert_structural_equal(made, After)


@pytest.mark.parametrize(
    "mod",
    [
        given(np.arange(32, dtype="float32").reshape(SHAPE)),
        given(np.where(np.arange(32) == 31, -0.0, 0.0).astype("float32").reshape(SHAPE)),
        given(np.ones(SHAPE, "float32"), pattern=4),
        given(np.ones(SHAPE, "float32"), pattern=8),
    ],
    ids=["of several values", "of two zeros", "of a contraction", "of what is opaque"],
)
def test_others_stay(mod: tvm.IRModule) -> None:
    tvm.ir.assert_structural_equal(narrowed(mod), mod)


def test_what_is_computed_of_a_models_own_tensors_stays() -> None:
    """A norm that was never trained multiplies with ones. The others consist of scalars alone."""
    ones, two = relax.const(np.ones(48, "float32")), relax.const(np.float32(2))

    def body(emit: Any, x: Any) -> list[Any]:
        scale = emit(R.sqrt(emit(R.multiply(ones, two))))
        spread = emit(R.broadcast_to(emit(R.sqrt(two)), (48,)))
        y = emit(R.multiply(x, scale))
        return [y, R.add(y, spread), R.add(y, ones)]

    mod = build(body, ((40, 48), "float32"))
    places = computed_of_scalars(relax.transform.LegalizeOps()(mod))
    assert {var.name: list(at) for var, at in places.items()} == {"gv1": [1]}
    found = sorted(constant.shape for constant in constants_read(mod, LLVM))
    assert found == [(48,), (48,)]


@pytest.mark.parametrize("run", [on_llvm, emulated])
def test_broadcast_scalars_and_masks_of_one_value(run: Any) -> None:
    """Kernels read none of them from memory."""
    scalar = relax.const(np.float32(2.5))

    def body(emit: Any, x: Any) -> list[Any]:
        spread = emit(R.broadcast_to(scalar, (40, 48)))
        line = emit(R.full((48,), relax.const(True), "bool"))
        all_seen = emit(R.broadcast_to(emit(R.logical_or(line, line)), (40, 48)))
        nan = emit(R.full((40, 48), relax.const(np.float32(np.nan)), "float32"))
        return [R.maximum(x, spread), R.where(all_seen, emit(R.negative(x)), nan), R.where(all_seen, nan, x)]

    x = np.random.default_rng(0).standard_normal((40, 48)).astype("float32")
    mod = build(body, (x.shape, "float32"))
    wanted = [np.maximum(x, 2.5), -x, np.full_like(x, np.nan)]
    for got, want in zip(run(mod, x), wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    assert constants_read(mod, LLVM) == []
