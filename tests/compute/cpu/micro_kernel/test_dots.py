# SPDX-License-Identifier: Apache-2.0
"""Products of bfloat16 by weights that are no constants: which code has the instruction for pairs, and its results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, on_llvm, symbol
from tvm_stitch.relax import pipeline
from tvm_stitch.target import multiplies_bfloat16, resolve_target

KNOWS = multiplies_bfloat16(resolve_target("llvm -mcpu=cooperlake"))
HERE = multiplies_bfloat16(resolve_target("native"))
pytestmark = pytest.mark.skipif(not KNOWS, reason="this TVM has no code for pairs of bfloat16")
runs = pytest.mark.skipif(not HERE, reason="this CPU has no AVX512-BF16")


def product(rows: Any, columns: Any, depth: Any, transposed: bool = True, batch: Any = None) -> tvm.IRModule:
    """Return a module of one product in bfloat16, whose weight is stored as [columns, depth] if ``transposed``."""
    lead = [] if batch is None else [batch]
    axes = [*range(len(lead)), len(lead) + 1, len(lead)]

    def body(emit: Any, x: Any, w: Any) -> Any:
        return R.matmul(x, emit(R.permute_dims(w, axes)) if transposed else w, out_dtype="float32")

    weight = (columns, depth) if transposed else (depth, columns)
    return build(body, ((*lead, rows, depth), "bfloat16"), ((*lead, *weight), "bfloat16"))


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(ml_dtypes.bfloat16)


def code(mod: tvm.IRModule, target: str) -> str:
    """Return the assembly of a module."""
    made = resolve_target(target)
    executable = tvm.compile(mod, made, relax_pipeline=pipeline(made))
    return "\n".join(m.inspect_source("asm") for m in executable.mod.imports if m.kind == "llvm")


def script(mod: tvm.IRModule, target: str) -> str:
    """Return the lowered module as text."""
    made = resolve_target(target)
    with made:
        return str(pipeline(made)(mod).script(show_meta=False))


def check(got: np.ndarray, x: np.ndarray, w: np.ndarray, transposed: bool = True) -> None:
    """Compare with float64. Sums of float32 err by some units of the sum of magnitudes."""
    a, b = x.astype("float64"), w.astype("float64")
    b = np.swapaxes(b, -1, -2) if transposed else b
    assert got.shape == (a @ b).shape
    assert np.all(np.abs(got - a @ b) <= 2.0**-19 * (np.abs(a) @ np.abs(b)) + 1e-30)


def check_all(cases: list[tuple[int, int, int]], transposed: bool = True) -> None:
    """Compare products of rows, columns and depths with float64. All are in one module."""

    def body(emit: Any, *args: Any) -> list[Any]:
        rights = [emit(R.permute_dims(w)) if transposed else w for w in args[1::2]]
        return [R.matmul(x, w, out_dtype="float32") for x, w in zip(args[::2], rights)]

    inputs = []
    for rows, columns, depth in cases:
        weight = (columns, depth) if transposed else (depth, columns)
        inputs += [numbers(rows, depth), numbers(*weight, seed=1)]
    results = on_llvm(build(body, *((each.shape, "bfloat16") for each in inputs)), *inputs)
    for got, x, w in zip(results, inputs[::2], inputs[1::2]):
        check(got, x, w, transposed)


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "transposed"),
    [
        (4, 512, 512, True),  # along the reduction
        (16, 512, 512, True),
        (512, 64, 512, True),  # packed by tasks
        (16, 64, 64, True),
        (64, 64, 512, False),
    ],
)
def test_run_time_weights_are_multiplied_in_pairs(
    rows: int, columns: int, depth: int, transposed: bool
) -> None:
    mod = product(rows, columns, depth, transposed)
    lines = [line for line in code(mod, "llvm -mcpu=znver4").splitlines() if "vdpbf16ps" in line]
    assert lines and all("zmm" in line for line in lines)
    along = transposed and depth > 256 and rows < 256
    assert ("dot_bfloat16x16_along" in script(mod, "llvm -mcpu=znver4")) is along
    assert "vdpbf16ps" not in code(mod, "llvm -mcpu=skylake-avx512")


def test_symbolic_extents_are_multiplied_in_pairs_along_the_reduction() -> None:
    for mod in (product(symbol("m"), 48, 512), product(8, symbol("n"), symbol("k"))):
        assert "dot_bfloat16x16_along" in script(mod, "llvm -mcpu=znver4")
        assert "dot_bfloat16" not in script(mod, "llvm -mcpu=skylake-avx512")


def test_rows_of_a_power_of_two_are_copied_apart() -> None:
    copied, in_place = (script(product(16, 512, depth), "llvm -mcpu=znver4") for depth in (1024, 1056))
    assert "rows = T." in copied and "rows = T." not in in_place


def test_the_next_columns_are_prefetched() -> None:
    assert "prefetch" in code(product(4, 512, 512), "llvm -mcpu=znver4")


@runs
def test_along_the_reduction() -> None:
    few = [(rows, 50, 300) for rows in (1, 2, 3, 5, 16, 37)]
    narrow = [(7, columns, 300) for columns in (1, 3, 23, 24)]
    check_all([*few, *narrow, *((7, 50, depth) for depth in (0, 1, 31, 32, 67, 1024))])


@runs
@pytest.mark.parametrize("transposed", [False, True])
def test_panels_of_tasks(transposed: bool) -> None:
    sides = [(37, 1, 67), (37, 33, 64), (32, 64, 64), (101, 50, 7), (300, 70, 530)]
    check_all([*sides, *((37, 50, depth) for depth in (0, 1, 2, 256))], transposed)


@runs
@pytest.mark.parametrize("transposed", [False, True])
def test_panels_of_several_matrices(transposed: bool) -> None:
    x, w = numbers(3, 33, 64), numbers(*((3, 40, 64) if transposed else (3, 64, 40)), seed=1)
    (got,) = on_llvm(product(33, 40, 64, transposed, 3), x, w)
    check(got, x, w, transposed)


@runs
def test_blocks_of_a_long_reduction() -> None:
    check_all([(6, 26, 14336)])


@runs
def test_symbolic_extents() -> None:
    target = resolve_target("native")
    built = tvm.compile(
        product(symbol("m"), symbol("n"), symbol("k")), target, relax_pipeline=pipeline(target)
    )
    main = relax.VirtualMachine(built, tvm.cpu())["main"]
    for m, n, k in ((0, 48, 515), (1, 48, 515), (13, 48, 515), (5, 23, 31), (2, 0, 40), (9, 25, 0)):
        x, w = numbers(m, k), numbers(n, k, seed=1)
        check(main(tvm.runtime.tensor(x), tvm.runtime.tensor(w)).numpy(), x, w)
    x, w = numbers(13, 515), numbers(48, 515, seed=1)
    check(on_llvm(product(symbol("m"), 48, 515), x, w)[0], x, w)


@runs
def test_infinities_and_nan_stay() -> None:
    x, w = numbers(4, 512), numbers(64, 512, seed=1)
    x[0, 3], x[1, 5], w[7, 3] = np.inf, np.nan, 0
    (got,) = on_llvm(product(4, 64, 512), x, w)
    with np.errstate(invalid="ignore"):
        wanted = x.astype("float32") @ w.astype("float32").T
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(wanted))


@runs
def test_errors_are_those_of_float32_sums() -> None:
    """The sum of a thousand products is nearer to float64 than one that is rounded to bfloat16 at its end."""
    x, w = numbers(8, 1000), numbers(96, 1000, seed=1)
    exact = x.astype("float64") @ w.astype("float64").T
    (got,) = on_llvm(product(8, 96, 1000), x, w)
    assert np.abs(got - exact).max() / np.abs(exact).max() < 1e-6
