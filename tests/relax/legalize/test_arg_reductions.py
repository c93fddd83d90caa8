# SPDX-License-Identifier: Apache-2.0
"""argmax and argmin are stitched, right on both targets, and NumPy's where there are NaNs, infinities and ties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from cuda_emulator import run_lowered
from cuda_emulator.lowering import lower
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import LLVM, build, emulated, on_llvm, symbol
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.pipeline import Recorder

INF, NAN = np.inf, np.nan


def both(emit: Any, x: Any, axis: int | None = -1, keepdims: bool = False) -> list[Any]:
    return [R.argmax(x, axis, keepdims), R.argmin(x, axis, keepdims)]


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize(
    ("shape", "axis"), [((5, 41), -1), ((3, 7, 33), 1), ((2, 3000), 1), ((4, 5), None), ((6, 1), 1)]
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64"])
def test_indices_are_those_of_numpy(run: Any, shape: tuple[int, ...], axis: int | None, dtype: str) -> None:
    x = (np.random.default_rng(len(shape)).standard_normal(shape) * 9).astype(dtype)
    keepdims = len(shape) == 3
    mod = build(lambda emit, v: both(emit, v, axis, keepdims), (shape, dtype))
    wanted = [np.argmax(x, axis, keepdims=keepdims), np.argmin(x, axis, keepdims=keepdims)]
    for got, want in zip(run(mod, x), wanted, strict=True):
        assert got.dtype == np.int64
        np.testing.assert_array_equal(got, want)


ROWS = np.array(
    [
        [-INF, -INF, -INF, -INF, -INF],
        [INF, INF, INF, INF, INF],
        [1, NAN, 3, NAN, INF],
        [NAN, NAN, NAN, NAN, NAN],
        [0, -0.0, 0, -0.0, 0],
        [2, 7, -7, 7, -7],
        [-3.4028235e38, -INF, -3.4028235e38, 1e-45, -1e-45],
        [3.4028235e38, INF, 3.4028235e38, 1e-45, -1e-45],
    ],
    "float32",
)


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize("times", [1, 8, 100])
def test_nans_infinities_and_ties(run: Any, times: int) -> None:
    x = np.tile(ROWS, times)
    mod = build(both, (x.shape, "float32"))
    for got, want in zip(run(mod, x), (np.argmax(x, -1), np.argmin(x, -1)), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("target", [LLVM, emulated_target()], ids=["llvm", "cuda"])
def test_a_chain_with_an_argmax_is_one_kernel(target: tvm.target.Target) -> None:
    def body(emit: Any, x: Any, table: Any) -> Any:
        token = emit(R.argmax(emit(R.nn.softmax(emit(R.multiply(x, relax.const(2, "float32"))))), -1))
        return R.take(table, token, axis=0, mode="fast")

    mod = build(body, ((6, 100), "float32"), ((100, 8), "float32"))
    counted = count_kernels(mod, target, pipeline(target))
    assert counted.total == 1, counted.names
    assert count_kernels(mod, target).total > 2


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [1, None])
def test_symbolic_axes(axis: int | None, keepdims: bool) -> None:
    """NaNs, ties and infinities along axes of symbolic extent, on llvm and in the emulator."""
    mod = build(lambda emit, v: R.argmax(v, axis, keepdims), ((symbol("n"), symbol("m")), "float32"))
    assert count_kernels(mod, LLVM, pipeline(LLVM)).total == 1
    vm = relax.VirtualMachine(tvm.compile(mod, LLVM, relax_pipeline=pipeline(LLVM)), tvm.cpu())
    target = emulated_target()
    lowered = lower(mod, target, pipeline(target))
    rng = np.random.default_rng(3)
    for shape in ((1, 1), (3, 40), (5, 131), (2, 1030), (4, 9000)):
        x = rng.integers(-3, 4, shape).astype("float32")
        x[0, :] = -np.inf
        x[-1, shape[1] // 2] = np.nan
        wanted = np.argmax(x, axis, keepdims=keepdims)
        np.testing.assert_array_equal(vm["main"](tvm.runtime.tensor(x)).numpy(), wanted)
        if shape[1] < 2000:
            (found,) = run_lowered(lowered, [x.copy()]).check().outputs
            np.testing.assert_array_equal(found, wanted)


def test_booleans_stay_with_tvm() -> None:
    """One kernel of TVM's, where it compiles one, and the reason recorded."""
    mod = build(lambda emit, v: R.argmax(v, 1), ((4, 9), "bool"))
    recorder = Recorder()
    try:
        stock = count_kernels(mod, LLVM).total
    except Exception:  # TVM compiles no argmax of booleans
        return
    assert count_kernels(mod, LLVM, pipeline(LLVM, recorder=recorder)).total == stock == 1
    assert recorder.declined
