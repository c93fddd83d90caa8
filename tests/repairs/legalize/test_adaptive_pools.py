# SPDX-License-Identifier: Apache-2.0
"""Adaptive average pooling to sizes that divide nothing is one stitched kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import LLVM, build, emulated, on_llvm, prim_funcs, symbol
from tests.repairs import faults
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.graph.reader import read
from tvm_stitch.relax import pipeline
from tvm_stitch.repairs.legalize.mend import MendImports


def pooled(x: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Pool in float64, part by part."""
    x = x.astype("float64")
    for axis, size in enumerate(sizes, 2):
        old = x.shape[axis]
        parts = [
            x.take(range(i * old // size, -(-(i + 1) * old // size)), axis).mean(axis) for i in range(size)
        ]
        x = np.stack(parts, axis)
    return x


CASES: list[tuple[Any, tuple[int, ...], tuple[int, ...]]] = [
    (R.nn.adaptive_avg_pool2d, (2, 3, 9, 11), (6, 4)),
    (R.nn.adaptive_avg_pool2d, (2, 3, 2, 3), (6, 5)),
    (R.nn.adaptive_avg_pool2d, (1, 8, 13, 8), (5, 8)),
    (R.nn.adaptive_avg_pool1d, (2, 3, 11), (4,)),
    (R.nn.adaptive_avg_pool3d, (1, 2, 3, 5, 6), (2, 3, 4)),
]


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize(("operator", "shape", "sizes"), CASES)
def test_parts_of_different_sizes(
    run: Any, operator: Any, shape: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    mod = build(lambda emit, x: R.nn.relu(emit(operator(x, sizes))), (shape, "float32"))
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    (got,) = run(mod, x)
    np.testing.assert_allclose(got, np.maximum(pooled(x, sizes), 0), rtol=1e-5, atol=1e-6)
    assert count_kernels(mod, LLVM, pipeline(LLVM)).memory_intensive == 1


@pytest.mark.parametrize("run", [on_llvm, emulated])
def test_an_infinity_stays_in_its_parts(run: Any) -> None:
    x = np.zeros((1, 1, 5, 1), "float32")
    x[0, 0, 2] = np.inf
    (got,) = run(build(lambda emit, v: R.nn.adaptive_avg_pool2d(v, (4, 1)), (x.shape, "float32")), x)
    np.testing.assert_array_equal(got, pooled(x, (4, 1)))


@pytest.mark.parametrize("shape", [(2, 3, 12, 8), (2, 3, symbol("rows"), 9)])
def test_equal_parts_and_symbolic_sizes_are_left_alone(shape: Any) -> None:
    mod = build(lambda emit, x: R.nn.adaptive_avg_pool2d(x, (6, 4)), (shape, "float32"))
    tvm.ir.assert_structural_equal(MendImports()(mod), mod)


def test_a_symbolic_batch() -> None:
    mod = build(lambda emit, x: R.nn.adaptive_avg_pool2d(x, (4, 5)), ((symbol("n"), 2, 7, 6), "float32"))
    x = np.random.default_rng(0).standard_normal((3, 2, 7, 6)).astype("float32")
    (got,) = on_llvm(mod, x)
    np.testing.assert_allclose(got, pooled(x, (4, 5)), rtol=1e-5, atol=1e-6)


UNEQUAL = build(lambda emit, x: R.nn.adaptive_avg_pool2d(x, (6, 4)), ((2, 3, 9, 11), "float32"))


def test_fault() -> None:
    (func,) = prim_funcs(relax.transform.LegalizeOps()(UNEQUAL)).values()
    faults.needed(faults.raises(lambda: read(func)), "legalize/adaptive_pools.py")


def test_repair() -> None:
    def is_read(*passes: Any) -> bool:
        legal = tvm.transform.Sequential([*passes, relax.transform.LegalizeOps()])(UNEQUAL)
        return not faults.raises(lambda: [read(func) for func in prim_funcs(legal).values()])

    assert is_read(MendImports())
    with faults.without("MendImports"):
        assert not is_read(MendImports())
