# SPDX-License-Identifier: Apache-2.0
"""TVM's sums in a 16-bit float are accumulated in float32, on both targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import tirx as T

from cuda_emulator import lower, run_lowered
from tests.graph.helpers import build, symbol
from tests.repairs import faults
from tvm_stitch.relax import pipeline
from tvm_stitch.repairs.schedule.half_sums import HalfSums

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
CASES: dict[str, tuple[Callable[..., Any], Callable[[np.ndarray], np.ndarray]]] = {
    "sum": (lambda emit, x: R.sum(x, 1), lambda x: x.sum(1)),
    "sum of columns": (lambda emit, x: R.sum(emit(R.abs(x)), 0), lambda x: np.abs(x).sum(0)),
    "mean": (lambda emit, x: R.mean(x, 1), lambda x: x.mean(1)),
    "both": (lambda emit, x: R.add(emit(R.mean(x)), emit(R.sum(x, 1))), lambda x: x.mean() + x.sum(1)),
    "product": (lambda emit, x: R.prod(x, 1), lambda x: x.prod(1)),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_sums_of_symbolic_extents(name: str, dtype: str) -> None:
    """One rounding of the result remains, whoever computes them."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    body, expected = CASES[name]
    mod = build(lambda emit, x: [body(emit, x)], ((symbol("m"), symbol("n")), dtype))
    x = np.random.default_rng(0).uniform(0.99, 1.01, (3, 3001))
    if name == "product":
        x = x[:, :301]
    x = x.astype(dtype if dtype == "float16" else ml_dtypes.bfloat16)
    wanted = expected(x.astype("float64"))
    tensor = tvm.runtime.empty(x.shape, dtype).copyfrom(x)
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm", relax_pipeline=pipeline("llvm")), tvm.cpu())
    results = [np.array(vm["main"](tensor).numpy(), "float64")] if dtype == "float16" else []
    emulated = run_lowered(lower(mod, CUDA, pipeline(CUDA)), [x])
    assert not emulated.reports, emulated.reports
    results.append(emulated.outputs[0].astype("float64"))
    for result in results:
        np.testing.assert_allclose(result, wanted, rtol=2e-3 if dtype == "float16" else 1.6e-2)


@T.prim_func(s_tir=True)
def before(x: T.Buffer((4, 7), "float16"), y: T.Buffer((4,), "float16")):
    for i, k in T.grid(4, 7):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float16(0)
            y[vi] = y[vi] + x[vi, vk]


@T.prim_func(s_tir=True)
def after(x: T.Buffer((4, 7), "float16"), y: T.Buffer((4,), "float16")):
    wide = T.sblock_alloc_buffer((4,))
    for i, k in T.grid(4, 7):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                wide[vi] = T.float32(0)
            wide[vi] = wide[vi] + T.Cast("float32", x[vi, vk])
    for i in range(4):
        with T.sblock("rounded"):
            v = T.axis.spatial(4, i)
            y[v] = T.Cast("float16", wide[v])


@T.prim_func(s_tir=True)
def product(x: T.Buffer((4, 7), "float16"), w: T.Buffer((7,), "float16"), y: T.Buffer((4,), "float16")):
    for i, k in T.grid(4, 7):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float16(0)
            y[vi] = y[vi] + x[vi, vk] * w[vk]


def test_the_sum_is_wide() -> None:
    mod = tvm.IRModule({"main": before.with_attr("global_symbol", "main")})
    tvm.ir.assert_structural_equal(HalfSums()(mod)["main"], after.with_attr("global_symbol", "main"))


def test_products_of_operands_stay() -> None:
    mod = tvm.IRModule({"main": product.with_attr("global_symbol", "main")})
    assert HalfSums()(mod).same_as(mod)


def ones_counted(passes: Any) -> float:
    mod = build(lambda emit, x: R.sum(x), ((4096,), "float16"))
    return float(faults.on_cpu(mod, [np.ones(4096, "float16")], passes)[0])


def test_fault() -> None:
    faults.needed(ones_counted(None) == 2048, "schedule/half_sums.py")


def test_repair() -> None:
    assert ones_counted(faults.left_to_tvm(faults.LLVM)) == 4096
    with faults.without("HalfSums"):
        assert ones_counted(faults.left_to_tvm(faults.LLVM)) == 2048
