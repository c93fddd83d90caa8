# SPDX-License-Identifier: Apache-2.0
"""A few of the largest elements of rows are stitched and right, and other sorts are TVM's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from stitch_testing.random.graphs import emulated_target
from tests.choices import CHOICES
from tests.graph.helpers import H200, LLVM, build, emulated, on_llvm, symbol
from tvm_stitch import explain
from tvm_stitch.device import device_model
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.legalize.few_largest import TOP_K, FewLargest
from tvm_stitch.relax.rewriting.operators import has_operators


def first(x: np.ndarray, count: int, axis: int, largest: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the first elements of a stable sort, NaN above all numbers, and their indices."""
    wide = x.astype("float64")
    order = -wide if largest else wide
    order = np.where(np.isnan(wide), -np.inf if largest else np.inf, order)
    # Infinity is next to NaN: the second key tells them apart.
    numbers = np.isnan(wide) if not largest else ~np.isnan(wide)
    index = np.lexsort((numbers, order), axis)
    index = np.take(index, range(count), axis)
    return np.take_along_axis(x, index, axis), index


def drawn(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return numbers of which some are equal, and zeros of both signs, infinities and NaN among floats."""
    rng = np.random.default_rng(len(shape))
    limits = (-1, 1) if "float" in dtype else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = rng.choice([*limits, 0, 3, 5, 9], shape).astype(dtype)
    if "float" in dtype:
        x.flat[[1, 4, 7]] = np.inf, np.nan, -np.inf
        x.flat[[2, 6]] = -0.0, 0.0
    return x


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize(
    ("dtype", "largest", "shape", "axis", "count"),
    [
        ("float32", True, (3, 8), -1, 2),
        ("float32", False, (2, 9, 5), 1, 4),
        ("float16", False, (70,), 0, 3),
        ("int8", False, (3, 8), -1, 2),
        ("int32", True, (2, 9, 5), 1, 2),
        ("uint32", True, (70,), 0, 8),
    ],
)
def test_elements_and_indices(
    run: Any, dtype: str, largest: bool, shape: tuple[int, ...], axis: int, count: int
) -> None:
    mod = build(lambda emit, v: R.topk(v, count, axis, "both", largest, "int64"), (shape, dtype))
    x = drawn(shape, dtype)
    values, index = run(mod, x)
    wanted, places = first(x, count, axis, largest)
    assert (values.dtype, index.dtype) == (x.dtype, "int64")
    np.testing.assert_array_equal(values, wanted)
    np.testing.assert_array_equal(index, places)


@pytest.mark.parametrize("which", ["values", "indices"])
def test_one_of_both(which: str) -> None:
    x = drawn((4, 16), "float32")
    mod = build(lambda emit, v: R.topk(v, 3, -1, which, True, "int32"), (x.shape, "float32"))
    (got,) = on_llvm(mod, x)
    np.testing.assert_array_equal(got, first(x, 3, -1, True)[which == "indices"])
    assert got.dtype == ("float32" if which == "values" else "int32")


def test_rows_of_symbolic_length_on_a_gpu() -> None:
    mod = build(lambda emit, v: R.topk(v, 2, -1, "both", True, "int64"), ((3, symbol()), "float32"))
    x = drawn((3, 133), "float32")
    for got, wanted in zip(emulated(mod, x), first(x, 2, -1, True)):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_long_rows_are_one_kernel_that_selects(dtype: str) -> None:
    mod = build(lambda emit, v: R.topk(v, 8, -1, "both", True, "int64"), ((2, 5000), dtype))
    report = explain(mod, emulated_target())
    assert "our kernel: 8 of 5000 elements" in str(report.computed)
    x = drawn((2, 5000), dtype)
    for got, wanted in zip(emulated(mod, x), first(x, 8, -1, True)):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("target", [LLVM, emulated_target()], ids=["llvm", "cuda"])
def test_a_router_is_one_kernel(target: tvm.target.Target) -> None:
    """The shares of the experts that a mixture of experts chooses, as its layers compute them."""

    def body(emit: Any, scores: Any) -> Any:
        both = emit(R.topk(emit(R.nn.softmax(scores, -1)), 2, -1, "both", True, "int64"))
        shares, chosen = emit(relax.TupleGetItem(both, 0)), emit(relax.TupleGetItem(both, 1))
        return relax.Tuple([emit(R.divide(shares, emit(R.sum(shares, -1, keepdims=True)))), chosen])

    counted = count_kernels(build(body, ((5, 8), "float32")), target, pipeline(target))
    assert counted.total == 1, counted.names


def test_other_sorts_are_left_alone() -> None:
    most, longest, on_gpu = CHOICES.most_picks, CHOICES.cpu_picked_row, CHOICES.gpu_picked_row
    for kind, length, count, dtype, taken in (
        ("llvm", longest, most, "float32", True),
        ("llvm", longest, most + 1, "float32", False),
        ("llvm", longest + 1, 2, "float32", False),
        ("llvm", symbol(), 2, "float32", False),
        ("cuda", on_gpu, most, "float32", True),
        ("cuda", on_gpu + 1, 2, "float32", False),
        ("cuda", on_gpu, most + 1, "float32", False),
        ("cuda", symbol(), most, "float32", False),
        ("cuda", 64, 2, "float64", False),
        ("cuda", 64, 2, "int64", False),
        ("vulkan", on_gpu + 1, most, "float32", True),
        ("vulkan", symbol(), most, "float32", True),
    ):
        mod = build(
            lambda emit, v, count=count: R.topk(v, count, -1, "both", True, "int64"), ((3, length), dtype)
        )
        device = device_model(LLVM) if kind == "llvm" else H200
        rewritten = FewLargest(device, kind == "cuda")(mod)
        assert has_operators(rewritten, {TOP_K}) != taken, (kind, length, count, dtype)
