# SPDX-License-Identifier: Apache-2.0
"""Running sums and products of short rows are stitched and right. Those of long or symbolic rows are TVM's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op as R

from stitch_testing.random.graphs import emulated_target
from tests.choices import CHOICES
from tests.graph.helpers import H200, LLVM, build, emulated, on_llvm, symbol
from tvm_stitch.device import device_model
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.legalize.short_scans import SCANS, ShortScans
from tvm_stitch.relax.rewriting.operators import has_operators


def reference(x: np.ndarray, name: str, axis: int | None, exclusive: bool) -> np.ndarray:
    wide = x.astype("float64" if x.dtype.kind == "f" else "int64")
    if axis is None:
        wide, axis = wide.reshape(-1), 0
    function, unit = {"cumsum": (np.cumsum, 0), "cumprod": (np.cumprod, 1)}[name]
    if exclusive:
        wide = np.roll(wide, 1, axis)
        wide[(slice(None),) * (axis % wide.ndim) + (0,)] = unit
    return function(wide, axis)


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize(("shape", "axis"), [((3, 65), -1), ((2, 7, 5), 1), ((4, 6), None), ((3, 1), 1)])
@pytest.mark.parametrize(("name", "exclusive"), [("cumsum", False), ("cumsum", True), ("cumprod", False)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "float16"])
def test_scans_are_right(
    run: Any, shape: tuple[int, ...], axis: int | None, name: str, exclusive: bool, dtype: str
) -> None:
    rng = np.random.default_rng(len(shape))
    x = rng.uniform(0.9, 1.1, shape).astype(dtype) if "float" in dtype else rng.integers(-2, 3, shape)
    scan = {"cumsum": R.cumsum, "cumprod": R.cumprod}[name]
    mod = build(lambda emit, v: scan(v, axis, dtype, exclusive), (shape, dtype))
    (got,) = run(mod, x)
    wanted = reference(x, name, axis, exclusive)
    if "float" in dtype:
        assert got.dtype == dtype
        tolerance = 2e-6 if dtype == "float32" else 1e-3
        np.testing.assert_allclose(got.astype("float64"), wanted, rtol=tolerance)
    else:
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("target", [LLVM, emulated_target()], ids=["llvm", "cuda"])
def test_positions_from_a_mask_are_one_kernel(target: tvm.target.Target) -> None:
    def body(emit: Any, tokens: Any, table: Any) -> Any:
        mask = emit(R.astype(emit(R.not_equal(tokens, tvm.relax.const(0, "int64"))), "int64"))
        count = emit(R.cumsum(mask, 1))
        return R.take(table, emit(R.subtract(count, tvm.relax.const(1, "int64"))), axis=0, mode="fast")

    mod = build(body, ((2, 16), "int64"), ((40, 8), "float32"))
    counted = count_kernels(mod, target, pipeline(target))
    assert counted.total == 1, counted.names


def test_long_and_symbolic_rows_are_left_alone() -> None:
    longest = CHOICES.cpu_scan_as_sums
    for on_device, length, taken in (
        (False, longest, True),
        (False, longest + 1, False),
        (True, longest + 1, True),
        (True, CHOICES.gpu_scan_as_sums + 1, False),
        (False, symbol(), False),
    ):
        mod = build(lambda emit, v: R.cumsum(v, 1), ((3, length), "float32"))
        device = H200 if on_device else device_model(LLVM)
        assert has_operators(ShortScans(device)(mod), SCANS) != taken, (on_device, length)
