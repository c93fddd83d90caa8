# SPDX-License-Identifier: Apache-2.0
"""The maximum of nothing but minus infinities is minus infinity. TVM starts from the last number of the type."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import build
from tvm_stitch import StitchConfig
from tvm_stitch.relax import pipeline

TYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def rows(dtype: str, columns: int) -> np.ndarray:
    """Return rows: the first of infinities alone, the second with a number among them, the others of numbers."""
    x = np.random.default_rng(columns).standard_normal((5, columns))
    x[:2] = -np.inf
    x[1, columns // 2] = -3
    return x.astype(TYPES[dtype])


def model(name: str, x: np.ndarray, dtype: str, axis: int) -> tvm.IRModule:
    def body(emit: Any, x: Any) -> list[Any]:
        x = emit(R.negative(x)) if name == "min" else emit(R.abs(x)) if name == "abs" else x
        return [getattr(R, "min" if name == "min" else "max")(x, axis)]

    return build(body, (x.shape, dtype))


def expected(name: str, x: np.ndarray, axis: int) -> np.ndarray:
    return {"max": x.max(axis), "min": (-x).min(axis), "abs": np.abs(x).max(axis)}[name]


@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("columns", [1, 7, 40, 3000])
@pytest.mark.parametrize("name", ["max", "min", "abs"])
@pytest.mark.parametrize("dtype", TYPES)
def test_on_a_cpu(dtype: str, name: str, columns: int, axis: int) -> None:
    x = rows(dtype, columns) if axis == -1 else np.ascontiguousarray(rows(dtype, columns).T)
    vm = relax.VirtualMachine(tvm_stitch.compile(model(name, x, dtype, axis)), tvm.cpu())
    result = vm["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(result.astype("float64"), expected(name, x, axis).astype("float64"))


@pytest.mark.parametrize("columns", [1, 7, 40, 3000])
@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_on_a_gpu(dtype: str, name: str, columns: int) -> None:
    x = rows(dtype, columns)
    target = emulated_target()
    mod = model(name, x, dtype, -1)
    done = run_cuda(mod, [x.copy()], target=target, relax_pipeline=pipeline(target)).check()
    np.testing.assert_array_equal(done.outputs[0].astype("float64"), expected(name, x, -1).astype("float64"))


def test_what_a_function_starts_from_otherwise_stays() -> None:
    """A function of one's own may take the maximum of a row and a number."""
    from tvm import te

    from_zero = te.comm_reducer(lambda a, b: tvm.tirx.max(a, b), lambda t: tvm.tirx.const(0, t), "from_zero")

    def top(x: Any) -> Any:
        k = te.reduce_axis((0, x.shape[1]), "k")
        return te.compute((x.shape[0],), lambda i: from_zero(x[i, k], axis=k), "top")

    mod = build(lambda emit, x: [relax.BlockBuilder.current().call_te(top, x)], ((4, 6), "float32"))
    data = np.random.default_rng(0).standard_normal((4, 6)).astype("float32") - 2
    vm = relax.VirtualMachine(tvm_stitch.compile(mod, config=StitchConfig(strict=True)), tvm.cpu())
    result = vm["main"](tvm.runtime.tensor(data)).numpy()
    np.testing.assert_array_equal(result, np.maximum(data.max(1), 0))
