# SPDX-License-Identifier: Apache-2.0
"""Reductions over extents that are 0 at run time have a result, also where TVM computes them on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import tirx as T

from tests.graph.helpers import build, symbol
from tests.repairs import faults
from tvm_stitch.relax import pipeline
from tvm_stitch.repairs.schedule.empty_reductions import EmptyReductions

F32 = "float32"
CASES: dict[str, tuple[Callable[..., Any], Callable[[np.ndarray], np.ndarray]]] = {
    "sum of columns": (lambda emit, x: R.sum(emit(R.exp(x)), 0), lambda x: np.exp(x).sum(0)),
    "sum of all": (lambda emit, x: R.sum(x), lambda x: x.sum()),
    "product": (lambda emit, x: R.prod(x, 0), lambda x: x.prod(0)),
    "mean": (lambda emit, x: R.mean(x, 0), lambda x: x.mean(0)),
    "matmul": (lambda emit, x: R.matmul(emit(R.permute_dims(x)), x), lambda x: x.T @ x),
    "softmax": (lambda emit, x: R.nn.softmax(x, 0), lambda x: np.exp(x) / np.exp(x).sum(0)),
    "arg max": (
        lambda emit, x: R.argmax(R.concat([x, x], 1), 1),
        lambda x: np.concatenate([x, x], 1).argmax(1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_extents_of_zero(name: str) -> None:
    body, expected = CASES[name]
    mod = build(lambda emit, x: [body(emit, x)], ((symbol("n"), 8), F32))
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm", relax_pipeline=pipeline("llvm")), tvm.cpu())
    for n in (64, 0, 3):  # the first leaves its results in memory that is used again
        x = np.random.default_rng(n).standard_normal((n, 8)).astype(F32)
        with np.errstate(all="ignore"):
            wanted = expected(x.astype("float64"))
        np.testing.assert_allclose(vm["main"](tvm.runtime.tensor(x)).numpy(), wanted, rtol=1e-4, atol=1e-5)


@T.prim_func(s_tir=True)
def static(x: T.Buffer((4, 7), "float32"), y: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 7):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi, vk]


def test_extents_that_are_not_zero_stay() -> None:
    mod = tvm.IRModule({"main": static.with_attr("global_symbol", "main")})
    assert EmptyReductions()(mod).same_as(mod)


@T.prim_func(s_tir=True)
def row_sums(a: T.handle, y: T.Buffer((4,), "float32")):
    n = T.int64()
    x = T.match_buffer(a, (4, n), "float32")
    for i, k in T.grid(4, n):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi, vk]


def sums_of_nothing(mod: tvm.IRModule) -> np.ndarray:
    """Return the sums that a kernel writes into memory full of sevens."""
    result = tvm.runtime.tensor(np.full(4, 7, F32))
    tvm.compile(mod, "llvm")["main"](tvm.runtime.tensor(np.ones((4, 0), F32)), result)
    return result.numpy()


def test_fault() -> None:
    mod = tvm.IRModule({"main": row_sums.with_attr("global_symbol", "main")})
    faults.needed(bool(sums_of_nothing(mod).any()), "schedule/empty_reductions.py")


def test_repair() -> None:
    mod = tvm.IRModule({"main": row_sums.with_attr("global_symbol", "main")})
    assert not sums_of_nothing(tvm.transform.Sequential([EmptyReductions()])(mod)).any()
    with faults.without("EmptyReductions"):
        assert sums_of_nothing(tvm.transform.Sequential([EmptyReductions()])(mod)).any()
