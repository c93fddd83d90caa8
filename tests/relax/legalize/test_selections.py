# SPDX-License-Identifier: Apache-2.0
"""Up to 64 elements of rows are one kernel, right for equal elements, NaN and all lengths, and not more kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import LLVM, build, emulated, on_llvm, symbol
from tests.relax.legalize.test_few_largest import drawn, first
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.legalize.few_largest import TOP_K
from tvm_stitch.relax.legalize.selections import Selections
from tvm_stitch.relax.rewriting.operators import has_operators

CASES = [
    ("float32", True, (5, 80), -1, 20),
    ("float32", False, (2, 101), -1, 64),
    ("float16", False, (2, 77, 5), 1, 33),
    ("bfloat16", True, (3, 65), -1, 65 - 2),
    ("int32", True, (4, 60), 1, 40),
    ("uint32", True, (99,), 0, 12),
    ("int8", False, (2, 300), 1, 64),
    ("uint8", True, (3, 128), -1, 9),
    ("int16", True, (1, 64), -1, 64),
    ("uint16", False, (2, 9001), 1, 50),
    ("float32", True, (1, 32000), -1, 40),
]


def top_k(count: int, axis: int = -1, largest: bool = True, which: str = "both", dtype: str = "int64") -> Any:
    return lambda emit, x: R.topk(x, count, axis, which, largest, dtype)


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize(("dtype", "largest", "shape", "axis", "count"), CASES)
def test_elements_and_indices(
    run: Any, dtype: str, largest: bool, shape: tuple[int, ...], axis: int, count: int
) -> None:
    x = drawn(shape, dtype)
    values, index = run(build(top_k(count, axis, largest), (shape, dtype)), x)
    wanted, places = first(x, count, axis, largest)
    assert (values.dtype, index.dtype) == (x.dtype, "int64")
    np.testing.assert_array_equal(index, places)
    np.testing.assert_array_equal(values.view(f"u{x.itemsize}"), wanted.view(f"u{x.itemsize}"))  # -0.0 stays


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize("which", ["values", "indices"])
def test_one_of_both(run: Any, which: str) -> None:
    x = drawn((4, 90), "float32")
    (got,) = run(build(top_k(30, which=which, dtype="int32"), (x.shape, "float32")), x)
    np.testing.assert_array_equal(got, first(x, 30, -1, True)[which == "indices"])
    assert got.dtype == ("float32" if which == "values" else "int32")


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize("length", [40, 133, 9000])
def test_symbolic_rows(run: Any, length: int) -> None:
    mod = build(top_k(40), ((symbol("rows"), symbol()), "float32"))
    for rows in (0, 1, 3):
        x = np.random.default_rng(rows).standard_normal((rows, length)).astype("float32")
        for got, wanted in zip(run(mod, x), first(x, 40, -1, True), strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize("order", ["ascending", "descending", "equal", "half of the threads"])
def test_orders_in_which_many_elements_are_candidates(run: Any, order: str) -> None:
    """In the last one, half of a CUDA block's threads have all large elements, more than there is room for."""
    x = np.arange(20000, dtype="float32")[None]
    if order == "half of the threads":
        x = np.where(x % 512 < 256, 7 * x % 20000 + 30000, x).astype("float32")
    x = {"descending": -x, "equal": 0 * x}.get(order, x)
    for got, wanted in zip(
        run(build(top_k(64), (x.shape, "float32")), x), first(x, 64, -1, True), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)


def test_a_row_shorter_than_its_count_reads_nothing_outside() -> None:
    mod = build(top_k(20), ((2, symbol()), "float32"))
    x = np.random.default_rng(0).standard_normal((2, 9)).astype("float32")
    for run in (on_llvm, emulated):
        for got, wanted in zip(run(mod, x), first(x, 9, -1, True), strict=True):
            np.testing.assert_array_equal(got[:, :9], wanted)


@pytest.mark.parametrize("target", [LLVM, emulated_target()], ids=["llvm", "cuda"])
def test_a_sampler_is_two_kernels(target: tvm.target.Target) -> None:
    """The best scores of a vocabulary, and their softmax at a temperature."""

    def body(emit: Any, scores: Any) -> Any:
        both = emit(R.topk(scores, 40, -1, "both", True, "int64"))
        warm = emit(R.divide(emit(relax.TupleGetItem(both, 0)), relax.const(0.8)))
        return relax.Tuple([emit(R.nn.softmax(warm, -1)), emit(relax.TupleGetItem(both, 1))])

    counted = count_kernels(build(body, ((1, 32000), "float32")), target, pipeline(target))
    assert counted.total == 2, counted.names


def test_other_sorts_are_left_alone() -> None:
    for kind, length, count, dtype, taken in (
        ("llvm", 2000, 64, "float32", True),
        ("llvm", 2000, 65, "float32", False),
        ("cuda", 2000, 64, "float32", True),
        ("cuda", 2000, 65, "float32", False),
        ("llvm", 2000, 20, "float64", False),
        ("cuda", 2000, 20, "int64", False),
        ("c", 2000, 20, "int32", False),
    ):
        mod = build(top_k(count), ((3, length), dtype))
        target = emulated_target() if kind == "cuda" else tvm.target.Target(kind)
        assert has_operators(Selections(target)(mod), {TOP_K}) != taken, (kind, count, dtype)


@pytest.mark.parametrize(
    ("which", "dtype"), [("both", "float32"), ("values", "uint8"), ("indices", "float16"), ("both", "uint32")]
)
def test_sorts_of_other_targets_are_of_integers_in_the_order_of_the_elements(which: str, dtype: str) -> None:
    x = drawn((3, 50), dtype)
    mod = Selections(tvm.target.Target("c"))(build(top_k(30, which=which, dtype="int32"), (x.shape, dtype)))
    wanted = first(x, 30, -1, True)
    executable = tvm.compile(mod, "llvm")
    got = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x))
    found = got if which == "both" else [got]
    for each, right in zip(found, wanted if which == "both" else [wanted[which == "indices"]], strict=True):
        np.testing.assert_array_equal(each.numpy(), right)
