# SPDX-License-Identifier: Apache-2.0
"""Constant weights of half types with the axis that is summed innermost."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tests.relax import cublaslt_stand_in
from tests.relax.library.matmul_calls import calls, mode
from tvm_stitch import StitchConfig
from tvm_stitch.compute.cuda import library
from tvm_stitch.relax.library.reduction_innermost import ReductionInnermost
from tvm_stitch.relax.pipeline import planning_passes

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")


def draw(*shape: int, dtype: str = "float16") -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.dtype(dtype))


def turned(mod: tvm.IRModule) -> tvm.IRModule:
    return ReductionInnermost(lambda: True)(mod)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("out", ["float32", None])
def test_a_weight_is_a_transposition(dtype: str, out: str | None) -> None:
    w, x = draw(8, 5, dtype=dtype), ((symbol("n"), 8), dtype)
    before = build(lambda emit, x: [R.matmul(x, relax.const(w, dtype), out_dtype=out)], x)

    def body(emit: Any, x: Any) -> list[Any]:
        weight = relax.const(np.ascontiguousarray(w.T), dtype)
        return [R.matmul(x, emit(R.permute_dims(weight, [1, 0])), out_dtype=out)]

    tvm.ir.assert_structural_equal(turned(before), build(body, x))


def test_a_weight_of_few_rows_is_left_to_stitch_ops() -> None:
    mod = build(lambda emit, x: [R.matmul(x, relax.const(draw(8, 5), "float16"))], ((1, 1, 8), "float16"))
    tvm.ir.assert_structural_equal(ReductionInnermost(lambda: True, lambda dtype, depth: 1)(mod), mod)
    assert "permute_dims" in str(turned(mod))


def test_products_of_one_weight_share_it() -> None:
    w = relax.const(draw(8, 8))
    mod = turned(build(lambda emit, x: [R.matmul(emit(R.matmul(x, w)), w)], ((4, 8), "float16")))
    found = [b.value.args[0] for b in mod["main"].body.blocks[0].bindings if "permute" in str(b.value.op)]
    assert len(found) == 2 and found[0].same_as(found[1])


OTHERS = {
    "float32": lambda emit, x: [
        R.matmul(emit(R.astype(x, "float32")), relax.const(draw(8, 5, dtype="float32")))
    ],
    "the left side": lambda emit, x: [R.matmul(relax.const(draw(5, 4)), x)],
    "a batch": lambda emit, x: [R.matmul(x, relax.const(draw(3, 8, 5)))],
    "a vector": lambda emit, x: [R.matmul(x, relax.const(draw(8)))],
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str) -> None:
    mod = build(OTHERS[name], ((4, 8), "float16"))
    tvm.ir.assert_structural_equal(turned(mod), mod)


def test_without_the_library_weights_stay() -> None:
    mod = build(lambda emit, x: [R.matmul(x, relax.const(draw(8, 5)))], ((4, 8), "float16"))
    tvm.ir.assert_structural_equal(ReductionInnermost(lambda: False)(mod), mod)


def test_in_the_pipeline_the_library_reads_it_transposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.CUBLASLT, "function", cublaslt_stand_in.NAME)
    monkeypatch.setattr(library.CUBLASLT, "missing", lambda: None)
    monkeypatch.setattr(library.CUBLASLT, "load", lambda: None)
    w, x = draw(8, 5), draw(20, 8)
    mod = build(lambda emit, x: [R.nn.relu(emit(R.matmul(x, relax.const(w))))], ((20, 8), "float16"))
    with CUDA:
        made = tvm.transform.Sequential(planning_passes(CUDA, StitchConfig()))(mod)
    (call,) = calls(made)
    assert mode(call).split()[0] == "right_transposed" and "permute" not in made.script()
    weight = call.args[1][1].value.numpy()
    np.testing.assert_array_equal(weight, w.T)
    run = relax.VirtualMachine(tvm.compile(made, "llvm"), tvm.cpu())["main"]
    want = np.maximum(x.astype("float64") @ w.astype("float64"), 0)
    np.testing.assert_allclose(run(tvm.runtime.tensor(x)).numpy(), want, rtol=1e-3, atol=1e-3)
