# SPDX-License-Identifier: Apache-2.0
"""Batch norms at inference become a multiplication and an addition. Batch norms of training stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tvm_stitch import StitchConfig
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.constants.batch_norm import ScaledBatchNorm

RNG = np.random.default_rng(0)
PARAMETERS = [RNG.uniform(0.5, 2, 4).astype("float32") for _ in range(4)]


def model(axis: int, **attrs: Any) -> Any:
    def body(emit: Any, x: Any) -> list[Any]:
        made = emit(R.nn.batch_norm(x, *map(relax.const, PARAMETERS), axis=axis, **attrs))
        return [relax.TupleGetItem(made, i) for i in range(3)]

    return body


def names(mod: tvm.IRModule) -> list[str]:
    found: list[str] = []
    relax.analysis.post_order_visit(
        mod["main"],
        lambda e: (
            found.append(e.op.name) if isinstance(e, relax.Call) and isinstance(e.op, tvm.ir.Op) else None
        ),
    )
    return found


@pytest.mark.parametrize("attrs", [{}, {"center": False}, {"scale": False}, {"epsilon": 0.5}], ids=str)
@pytest.mark.parametrize(("shape", "axis"), [((2, 4, 3, 5), 1), ((2, 3, 4), 2), ((2, 3, 4), -1)])
def test_it_is_scaled_and_shifted(shape: tuple[int, ...], axis: int, attrs: dict[str, Any]) -> None:
    mod = build(model(axis, training=False, **attrs), (shape, "float32"))
    changed = ScaledBatchNorm()(mod)
    assert names(changed) == ["relax.multiply", "relax.add"]
    vm = relax.VirtualMachine(tvm.compile(changed, "llvm"), tvm.cpu())
    x = RNG.standard_normal(shape).astype("float32")
    y, mean, variance = (r.numpy() for r in vm["main"](tvm.runtime.tensor(x)))
    wide = np.moveaxis(x.astype("float64"), axis, -1)
    gamma, beta, m, v = PARAMETERS
    wanted = (wide - m) / np.sqrt(v + attrs.get("epsilon", 1e-5))
    wanted = wanted * (gamma if attrs.get("scale", True) else 1) + (beta if attrs.get("center", True) else 0)
    np.testing.assert_allclose(np.moveaxis(y, axis, -1), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(mean, m)
    np.testing.assert_array_equal(variance, v)


@pytest.mark.parametrize("bound", [False, True])
def test_of_float64(bound: bool) -> None:
    """Constants keep their type, also those that are bound to variables."""

    def body(emit: Any, x: Any) -> list[Any]:
        constants = [relax.const(p.astype("float64"), "float64") for p in PARAMETERS]
        constants = [emit(c) for c in constants] if bound else constants
        return [relax.TupleGetItem(emit(R.nn.batch_norm(x, *constants, axis=1, training=False)), 0)]

    mod = build(body, ((2, 4, 3), "float64"))
    recorder = Recorder()
    executable = tvm.compile(
        mod, "llvm", relax_pipeline=pipeline("llvm", StitchConfig(strict=True), recorder)
    )
    x = RNG.standard_normal((2, 4, 3))
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    gamma, beta, m, v = (p.astype("float64")[:, None] for p in PARAMETERS)
    np.testing.assert_allclose(result, (x - m) / np.sqrt(v + 1e-5) * gamma + beta, rtol=1e-12, atol=1e-12)
    assert len(recorder.plans) == 1 and not recorder.declined


@pytest.mark.parametrize("attrs", [{}, {"center": False}, {"scale": False}], ids=str)
def test_parameters_that_are_no_constants(attrs: dict[str, Any]) -> None:
    """The scale and the shift are computed in the call, and nothing else is left to TVM."""

    def of_arguments(emit: Any, x: Any, *parameters: Any) -> list[Any]:
        made = emit(R.nn.batch_norm(x, *parameters, axis=1, training=False, **attrs))
        return [relax.TupleGetItem(made, 0)]

    mod = build(of_arguments, ((2, 4, 3), "float32"), *[((4,), "float32")] * 4)
    assert "relax.nn.batch_norm" not in names(ScaledBatchNorm()(mod))
    recorder = Recorder()
    passes = pipeline("llvm", StitchConfig(strict=True), recorder)
    x = RNG.standard_normal((2, 4, 3)).astype("float32")
    arrays = [tvm.runtime.tensor(each) for each in (x, *PARAMETERS)]
    executable = tvm.compile(mod, "llvm", relax_pipeline=passes)
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*arrays).numpy()
    gamma, beta, m, v = (p.astype("float64")[:, None] for p in PARAMETERS)
    wanted = (x - m) / np.sqrt(v + 1e-5) * (gamma if attrs.get("scale", True) else 1)
    np.testing.assert_allclose(
        result, wanted + (beta if attrs.get("center", True) else 0), rtol=1e-5, atol=1e-6
    )
    assert recorder.plans and not recorder.declined


def test_training_stays() -> None:
    mod = build(model(1, training=True), ((2, 4, 3), "float32"))
    tvm.ir.assert_structural_equal(ScaledBatchNorm()(mod), mod)
