# SPDX-License-Identifier: Apache-2.0
"""On a GPU a constant weight of a product of few rows is stored with the elements of a sum next to each other."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import emulated
from tvm_stitch import StitchConfig, explain
from tvm_stitch.device import device_model
from tvm_stitch.relax.few_rows.product_sums import ProductSums
from tvm_stitch.relax.few_rows.whole_products import WholeProducts

TOLERANCE = {"float32": 2e-6, "bfloat16": 2e-2}


def gated(dtype: str, transposed: bool, rows: int = 1) -> tuple[tvm.IRModule, np.ndarray, np.ndarray]:
    """Return ``silu(x @ a) * (x @ b)`` with constant weights, an input, and the result in float64."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, rows, 48)).astype(dtype)
    weights = [(rng.standard_normal((48, 72)) / 7).astype(dtype) for _ in range(2)]
    builder = relax.BlockBuilder()
    given = relax.Var("x", relax.TensorType(x.shape, dtype))
    with builder.function("main", [given]):
        with builder.dataflow():
            products = []
            for weight in weights:
                stored = relax.const(np.ascontiguousarray(weight.T) if transposed else weight, dtype)
                right = builder.emit(op.permute_dims(stored)) if transposed else stored
                products.append(builder.emit(op.matmul(given, right)))
            result = builder.emit_output(op.multiply(op.nn.silu(products[0]), products[1]))
        builder.emit_func_output(result)
    a, b = (x.astype("float64") @ weight.astype("float64") for weight in weights)
    return builder.get(), x, a / (1 + np.exp(-a)) * b


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("transposed", [False, True])
def test_it_is_one_kernel_and_right(dtype: str, transposed: bool) -> None:
    mod, x, wanted = gated(dtype, transposed)
    report = explain(mod, emulated_target())
    assert report.model is not None
    assert report.model.stitched.kernels == len(report.model.kernels) == 1
    (found,) = emulated(mod, x)
    assert np.abs(found.astype("float64") - wanted).max() <= TOLERANCE[dtype] * np.abs(wanted).max()


def test_it_is_stored_as_before_if_no_scope_takes_the_product() -> None:
    config = StitchConfig()
    device = device_model(emulated_target(), config)
    mod = relax.transform.LegalizeOps()(gated("float32", False)[0])
    before = constants(mod)
    sums = ProductSums(device, config)(mod)
    assert [each.shape for each in constants(sums)] == [each.T.shape for each in before]
    for turned, each in zip(constants(sums), before, strict=True):
        np.testing.assert_array_equal(turned, each.T)
    for found, each in zip(constants(WholeProducts()(sums)), before, strict=True):
        np.testing.assert_array_equal(found, each)


def constants(mod: tvm.IRModule) -> list[np.ndarray]:
    """Return the matrices that the calls of a module take."""
    calls = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    args = [arg for call in calls if isinstance(call, relax.Call) for arg in call.args[1].fields]
    return [
        arg.value.numpy()
        for arg in args
        if isinstance(arg, tvm.ir.GenericConst) and len(arg.value.shape) == 2
    ]
