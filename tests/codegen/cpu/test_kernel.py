# SPDX-License-Identifier: Apache-2.0
"""CPU kernels against float64 NumPy: every kind of tail, dtypes, and symbolic extents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op as R
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from tests.codegen.cpu.compiled import F32, MOVES, TOLERANCE, Compiled, build, check, draw, softmax
from tvm_stitch.codegen.cpu.half import round_bfloat16
from tvm_stitch.codegen.cpu.kernel import emit_cpu
from tvm_stitch.device import device_model
from tvm_stitch.graph import read
from tvm_stitch.plan.cpu.tile import Split
from tvm_stitch.plan.in_block import plan_in_block
from tvm_stitch.testing.workloads.case import Case
from tvm_stitch.testing.workloads.cases import cases


@pytest.mark.parametrize("case", [c for c in cases("test") if not c.matmuls], ids=lambda c: c.name)
def test_workloads(case: Case) -> None:
    compiled = Compiled(case.build())
    assert len(compiled.plans) == case.kernels
    compiled.check(case.inputs(np.random.default_rng(7)), dict(case.tolerance))


@pytest.mark.parametrize(
    "shape",
    [
        (1, 1),
        (1, 7),
        (3, 1),
        (5, 8),
        (4, 15),
        (64, 16),
        (7, 31),
        (3, 32),
        (3, 33),
        (2, 63),
        (2, 97),
        (1, 1009),
    ]
    + [(130, 1009), (1, 200003), (2, 100000), (300, 5), (300, 13), (1000, 2)],
    ids=str,
)
def test_softmax_of_any_length(shape: tuple[int, int]) -> None:
    check([shape], [F32], softmax(-1))


@pytest.mark.parametrize(
    "shape",
    [(2, 5, 7, 7), (2, 64, 8, 8), (3, 10, 4), (4, 33, 33), (1, 7, 64), (2, 21, 100), (5, 16, 3)],
    ids=str,
)
def test_softmax_over_channels(shape: tuple[int, ...]) -> None:
    assert len(check([shape], [F32], softmax(1)).plans) == 1


@pytest.mark.parametrize(
    "shape", [(1, 5), (17, 19), (128, 1000), (2048, 64), (2048, 67), (5, 3), (50000, 3)], ids=str
)
def test_column_and_full_reductions(shape: tuple[int, int]) -> None:
    # Sums of numbers around 0 cancel: the error is of the size of their roundings.
    sums = {F32: (3e-5, 1e-3)}
    check([shape], [F32], lambda emit, x: [emit(R.sum(x, axis=0)), emit(R.sum(x))], sums)
    check([shape], [F32], lambda emit, x: [emit(R.max(x))], {F32: (0.0, 0.0)})
    check(
        [shape], [F32],
        lambda emit, x: [
            emit(R.divide(emit(R.sum(emit(R.exp(x)), axis=0)), emit(R.max(emit(R.exp(x)), axis=0)))),
        ],
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float16", "bfloat16", "float64"])
def test_reductions_in_every_dtype(dtype: str) -> None:
    tolerance = {**TOLERANCE, "bfloat16": (2e-2, 2e-1), "float16": (4e-3, 4e-2)}
    for shape in [(33, 45), (5, 3)]:
        for axis in (-1, 0, None):
            check([shape], [dtype], lambda e, x: [e(R.sum(x, axis=axis))], tolerance)  # noqa: B023
            check([shape], [dtype], lambda e, x: [e(R.min(x, axis=axis))], tolerance)  # noqa: B023


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types(dtype: str) -> None:
    check([(9, 77)], [dtype], softmax(-1))
    check([(2, 9, 77)], [dtype], softmax(1))
    check([(9, 77)], [dtype], lambda e, x: [e(R.multiply(x, e(R.erf(x))))])


@pytest.mark.parametrize("columns", [640, 770])
def test_elements_of_bfloat16_that_lanes_share(columns: int) -> None:
    """Constants, an element for a whole row, and what only TVM's simplifier finds to be alike."""

    def outputs(emit: Any, x: relax.Expr) -> list[relax.Expr]:
        shape = relax.ShapeExpr([9, columns])
        places = emit(R.arange(0, 9 * columns, 1, "int64"))
        alike = emit(R.floor_divide(places, relax.const(4096, "int64")))
        return [
            emit(R.full(shape, relax.const(2.0, "bfloat16"), "bfloat16")),
            emit(R.zeros(shape, "bfloat16")),
            emit(R.astype(emit(R.broadcast_to(x, shape)), "bfloat16")),
            emit(R.astype(alike, "bfloat16")),
        ]

    check([(9, 1)], [F32], outputs)


def test_rows_that_are_never_few_have_no_serial_copy() -> None:
    """Its condition would say that an extent is 0, by which indices are divided."""
    dims = (12, 125, tirx.Var("n", "int64"), 1)
    compiled = Compiled(build([dims], ["uint16"], lambda e, x: [e(R.sum(x, axis=[-1], keepdims=True))]))
    for n in (1, 3):
        compiled.check([draw((12, 125, n, 1), "uint16")])


def test_booleans_are_computed_and_kept() -> None:
    check(
        [(9, 77), (9, 77)], ["bool", "bool"],
        lambda e, x, y: [e(R.logical_and(x, e(R.logical_not(y)))), e(R.logical_or(x, y))],
    )  # fmt: skip
    check([(9, 77), (9, 77), (9, 1)], ["bool", F32, F32], lambda e, c, x, y: [e(R.where(c, x, y))])
    check(
        [(9, 77), (9, 1)], [F32, F32],
        lambda e, x, y: [e(R.less(x, y)), e(R.astype(e(R.greater(x, y)), "int32"))],
    )  # fmt: skip
    check([(9, 77)], [F32], lambda e, x: [e(R.isnan(x)), e(R.isfinite(x)), e(R.isinf(x))])


def test_integers_and_casts() -> None:
    check([(9, 77), (77,)], ["int32", "int32"], lambda e, x, y: [e(R.add(e(R.multiply(x, y)), x))])
    check(
        [(9, 77)], ["int32"],
        lambda e, x: [
            e(R.floor_divide(x, relax.const(3, "int32"))), e(R.floor_mod(x, relax.const(3, "int32")))
        ],
    )  # fmt: skip
    check(
        [(9, 77)], [F32],
        lambda e, x: [e(R.astype(x, d)) for d in ("int8", "float16", "bfloat16", "bool", "int64")],
    )  # fmt: skip
    check([(9, 77)], [F32], lambda e, x: [e(op(x)) for op in (R.round, R.floor, R.ceil, R.trunc, R.sign)])


@pytest.mark.parametrize("name", MOVES)
def test_data_movement(name: str) -> None:
    shapes, body = MOVES[name]
    check(shapes, [F32] * len(shapes), body)


def test_gather() -> None:
    def body(e: Callable, x: relax.Expr, i: relax.Expr) -> Sequence[relax.Expr]:
        return softmax(-1)(e, e(R.take(x, e(R.abs(i)), axis=0)))

    check([(50, 33), (7,)], [F32, "int32"], body)


ROWS = (0, 1, 7, 64, 131)


@pytest.mark.parametrize("columns", [1, 5, 13, 33, 100])
def test_symbolic_rows(columns: int) -> None:
    compiled = Compiled(build([(tirx.Var("n", "int64"), columns)], [F32], softmax(-1)))
    for rows in ROWS:
        compiled.check([draw((rows, columns), F32)])


def test_symbolic_rows_run_serially_and_in_parallel() -> None:
    compiled = Compiled(build([(tirx.Var("n", "int64"), 512)], [F32], softmax(-1)))
    limit = compiled.mappings[0].serial_rows
    for rows in (limit, limit + 1, 4 * limit + 3):
        compiled.check([draw((rows, 512), F32)])


def test_symbolic_flat_and_image_domains() -> None:
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    flat = Compiled(build([(n,), (n,)], [F32, F32], lambda e, x, y: [e(R.exp(e(R.add(x, y))))]))
    images = Compiled(build([(n, 6, 49)], [F32], softmax(1)))
    two = Compiled(build([(n, m, 12)], [F32], softmax(-1)))
    for size in (*ROWS, 40000):
        flat.check([draw((size,), F32), draw((size,), F32)])
    for size in ROWS:
        images.check([draw((size, 6, 49), F32)])
        two.check([draw((size, 3, 12), F32)])


@pytest.mark.parametrize("size", [4, 8, 12, 24, 64, 80])
def test_a_symbolic_row_and_one_behind_it(size: int) -> None:
    """Pieces that have one source each are vectors, whichever it is."""
    n = tirx.Var("n", "int64")
    shapes = [(2, n, size), (2, 1, size)]
    plain = Compiled(build(shapes, [F32, F32], lambda e, x, y: [e(R.concat([x, y], axis=1))]))
    computed = Compiled(
        build(shapes, [F32, F32], lambda e, x, y: [e(R.concat([x, e(R.tanh(y))], axis=1))]),
        {"kind": "llvm", "mcpu": "haswell"},
    )
    for rows in (0, 1, 3, 4, 5, 33, 700):
        for compiled in (plain, computed):
            compiled.check([draw((2, rows, size), F32), draw((2, 1, size), F32)])


def test_large_rows_share_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "4")
    compiled = check(
        [(300_001,)], [F32], lambda e, x: [e(R.sum(x)), e(R.exp(e(R.max(x))))], {F32: (1e-4, 1e-1)}
    )
    assert any(m.divide is Split.COLUMNS and m.parallel for m in compiled.mappings)


def test_small_tensors_run_serially() -> None:
    compiled = check([(4, 64)], [F32], softmax(-1))
    assert compiled.mappings[0].parallel is False


def test_a_plan_for_a_gpu_is_refused() -> None:
    mod = relax.transform.LegalizeOps()(build([(4, 64)], [F32], lambda e, x: [e(R.exp(x))]))
    func = next(f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    plan = plan_in_block(read(func), device_model({"kind": "cuda", "arch": "sm_90"}))
    with pytest.raises(ValueError, match="CPU"):
        emit_cpu(func, plan)


def test_rounding_to_bfloat16_is_as_in_ml_dtypes() -> None:
    # Every upper half of a float32 (NaN and infinities included) with each of some lower halves around the ties.
    upper = np.arange(1 << 16, dtype=np.uint32)[:, None] << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=np.uint32)
    values = (upper | lower).view(np.float32).reshape(-1)
    with IRBuilder() as ib:
        with T.prim_func():
            T.func_name("main")
            T.func_attr({"global_symbol": "main"})
            a = T.arg("a", T.Buffer((values.size,), F32))
            b = T.arg("b", T.Buffer((values.size,), F32))
            with T.serial(0, values.size) as i:
                T.buffer_store(b, round_bfloat16(a[i]), [i])
    func = ib.get()
    rounded = np.zeros_like(values)
    out = tvm.runtime.tensor(rounded)
    tvm.compile(tvm.IRModule({"main": func}), target="llvm")(tvm.runtime.tensor(values), out)
    expected = values.astype("bfloat16").astype(F32)
    np.testing.assert_array_equal(out.numpy(), expected)


def test_reductions_of_long_rows_in_parts_have_no_start_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parts (of a concatenation), each with several tasks: all partial results count, and nothing but them."""
    monkeypatch.setenv("TVM_NUM_THREADS", "4")

    def body(e: Callable, x: relax.Expr, y: relax.Expr) -> list[relax.Expr]:
        far = e(R.abs(e(R.concat([x, y], 0))))
        low = e(R.subtract(e(R.negative(far)), relax.const(1.0, F32)))
        return [e(R.max(low)), e(R.sum(far))]

    compiled = check([(200_000,), (100_001,)], [F32, F32], body, {F32: (1e-4, 1e-1)})
    split = [m for m in compiled.mappings if m.divide is Split.COLUMNS]
    assert any(len(segment.parts) > 1 for m in split for segment in m.inner.values())
