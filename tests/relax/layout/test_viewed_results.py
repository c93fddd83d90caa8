# SPDX-License-Identifier: Apache-2.0
"""Results that are reshapes of a kernel's results are views of them. Reshapes of arguments are copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import LLVM, build, emulated, legalize, on_llvm, symbol
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.layout.viewed_results import ViewedResults


def test_the_result_gets_a_second_name() -> None:
    mod = legalize(build(lambda emit, x: R.reshape(emit(R.exp(x)), (2, 12)), ((6, 4), "float32")))
    once = relax.transform.CanonicalizeBindings()(mod)
    made = ViewedResults()(once)
    *before, result = made["main"].body.blocks[0].bindings
    assert isinstance(before[-1].var, relax.DataflowVar)
    assert result.value.same_as(before[-1].var) and made["main"].body.body.same_as(result.var)
    tvm.ir.assert_structural_equal(relax.transform.CanonicalizeBindings()(made), once)


def linear(emit: Any, x: Any, w: Any) -> Any:
    batch = x.ty.shape[0]
    flat = emit(R.reshape(x, (batch * 5, 8)))
    return R.reshape(emit(R.matmul(flat, w)), (batch, 5, 6))


@pytest.mark.parametrize("target", [LLVM, emulated_target()], ids=["llvm", "cuda"])
@pytest.mark.parametrize("batch", [3, symbol()], ids=["static", "symbolic"])
def test_a_linear_layer_is_one_kernel(target: tvm.target.Target, batch: Any) -> None:
    mod = build(linear, ((batch, 5, 8), "float32"), ((8, 6), "float32"))
    counted = count_kernels(mod, target, pipeline(target))
    assert counted.total == 1, counted.names


@pytest.mark.parametrize("run", [on_llvm, emulated])
def test_views_of_one_value_beside_it(run: Any) -> None:
    def body(emit: Any, x: Any) -> list[Any]:
        y = emit(R.exp(x))
        return [R.reshape(y, (24,)), y, R.reshape(y, (4, 6)), R.sum(y, 1)]

    x = np.random.default_rng(0).standard_normal((6, 4)).astype("float32")
    wanted = np.exp(x.astype("float64"))
    found = run(build(body, (x.shape, "float32")), x)
    for got, want in zip(
        found, [wanted.reshape(24), wanted, wanted.reshape(4, 6), wanted.sum(1)], strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=2e-6)


def test_the_reshape_of_an_argument_is_a_copy() -> None:
    mod = build(lambda emit, x: R.reshape(x, (24,)), ((6, 4), "float32"))
    executable = tvm.compile(mod, LLVM, relax_pipeline=pipeline(LLVM))
    x = tvm.runtime.tensor(np.ones((6, 4), "float32"))
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](x)
    x.copyfrom(np.zeros((6, 4), "float32"))
    np.testing.assert_array_equal(result.numpy(), 1)
