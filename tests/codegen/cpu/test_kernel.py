# SPDX-License-Identifier: Apache-2.0
"""CPU kernels against float64 NumPy: every kind of tail, dtypes, symbolic extents, and what LLVM gets."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op as R
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from stitch_testing.reference import relax as reference
from tvm_stitch import StitchConfig
from tvm_stitch.codegen.cpu.half import round_bfloat16
from tvm_stitch.codegen.cpu.kernel import emit_cpu
from tvm_stitch.device import device_model
from tvm_stitch.graph import read
from tvm_stitch.plan.cpu.tile import CpuMapping, Lanes, Split
from tvm_stitch.plan.in_block import plan_in_block
from tvm_stitch.plan.kernel import KernelPlan
from tvm_stitch.relax.pipeline import Recorder, pipeline, planning_passes
from tvm_stitch.testing.workloads.cases import Case, cases

TOLERANCE = {
    "float32": (3e-5, 3e-5),
    "float16": (4e-3, 4e-3),
    "bfloat16": (3e-2, 3e-2),
    "float64": (1e-12, 1e-12),
}
F32 = "float32"
Body = Callable[..., Sequence[relax.Expr]]


def build(shapes: Sequence[Sequence[Any]], dtypes: Sequence[str], body: Body) -> tvm.IRModule:
    """A module whose ``main`` takes tensors and returns what ``body(emit, *tensors)`` lists."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"a{i}", relax.TensorType(shape, dtype))
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    with builder.function("main", params):
        with builder.dataflow():
            outputs = [builder.emit_output(value) for value in body(builder.emit, *params)]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return builder.get()


def draw(shape: Sequence[int], dtype: str) -> np.ndarray:
    rng = np.random.default_rng(abs(hash((tuple(shape), dtype == "bool"))) % 2**32)
    if dtype == "bool":
        return rng.random(shape) < 0.7
    if dtype.startswith(("int", "uint")):
        return rng.integers(0 if dtype.startswith("u") else -9, 10, shape).astype(dtype)
    return rng.standard_normal(shape).astype(F32).astype(np.dtype(dtype))


class Compiled:
    """A module compiled with stitching, and the plans of its kernels."""

    def __init__(self, mod: tvm.IRModule, target: Any = "llvm"):
        target = tvm.target.Target(target)
        recorder = Recorder()
        self.mod = mod
        self.executable = tvm.compile(mod, target, relax_pipeline=pipeline(target, None, recorder))
        assert not recorder.declined, recorder.declined
        self.plans: list[KernelPlan] = list(recorder.plans.values())
        self.mappings = [cast(CpuMapping, plan.stage.mapping) for plan in self.plans]
        self.main = relax.VirtualMachine(self.executable, tvm.cpu())["main"]

    def check(self, inputs: Sequence[np.ndarray], tolerance: dict | None = None) -> None:
        """Compare a run with the reference."""
        found = self.main(*[tvm.runtime.tensor(a) for a in inputs])
        outputs = [found.numpy()] if hasattr(found, "numpy") else [t.numpy() for t in found]
        with np.errstate(all="ignore"):
            expected = reference.evaluate(self.mod, inputs)
        assert not reference.mismatches(outputs, expected, tolerance or TOLERANCE)

    @property
    def source(self) -> str:
        """The LLVM IR."""
        found = [self.executable.mod, *self.executable.mod.imports]
        return "\n".join(m.inspect_source("ll") for m in found if m.kind == "llvm")


def check(shapes: Any, dtypes: Sequence[str], body: Body, tolerance: dict | None = None) -> Compiled:
    """Compile for static shapes, run once, compare."""
    compiled = Compiled(build(shapes, dtypes, body))
    compiled.check([draw(s, d) for s, d in zip(shapes, dtypes, strict=True)], tolerance)
    return compiled


def softmax(axis: int) -> Body:
    def body(emit: Callable, x: relax.Expr) -> list[relax.Expr]:
        shifted = emit(R.subtract(x, emit(R.max(x, axis=axis, keepdims=True))))
        raised = emit(R.exp(shifted))
        return [emit(R.divide(raised, emit(R.sum(raised, axis=axis, keepdims=True))))]

    return body


def test_vectors_are_no_memory_of_the_runtime() -> None:
    """What a kernel holds for its lanes lies on the stack, where LLVM makes registers of it."""
    source = check([(64, 100)], [F32], softmax(1)).source
    assert "fmul <" in source and not re.search(r"@(__)?TVMBackendAllocWorkspace,", source)


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


def one() -> relax.Expr:
    return relax.const(1.0, F32)


MOVES: dict[str, tuple[list[tuple[int, ...]], Body]] = {
    "transpose": ([(9, 77)], lambda e, x: [e(R.exp(e(R.permute_dims(x, [1, 0]))))]),
    "large transpose": ([(200, 130)], lambda e, x: [e(R.add(e(R.permute_dims(x, [1, 0])), one()))]),
    "heads": ([(2, 8, 12, 16)], lambda e, x: [e(R.add(e(R.permute_dims(x, [0, 2, 1, 3])), one()))]),
    "reshape": ([(6, 35)], lambda e, x: [e(R.exp(e(R.reshape(x, (10, 21)))))]),
    "concat": ([(9, 30), (9, 47)], lambda e, x, y: [e(R.exp(e(R.concat([e(R.tanh(x)), y], axis=1))))]),
    "concat outer": ([(9, 30), (4, 30)], lambda e, x, y: [e(R.exp(e(R.concat([e(R.tanh(x)), y], axis=0))))]),
    "concat softmax": (
        [(9, 30), (9, 47)],
        lambda e, x, y: softmax(-1)(e, e(R.concat([e(R.tanh(x)), y], axis=1))),
    ),
    "concat short": (
        [(3, 5), (3, 5), (3, 5)],
        lambda e, x, y, z: [e(R.add(e(R.concat([x, y, z], axis=1)), one()))],
    ),
    "concat of one row's parts": (
        [(1, 5), (1, 5)],
        lambda e, x, y: [e(R.add(e(R.concat([x, y], axis=1)), one()))],
    ),
    # Math below conditions that differ between rows, and between the lanes of a vector.
    "concat sines": (
        [(9, 11), (9, 11)],
        lambda e, x, y: [e(R.concat([e(R.sin(x)), e(R.power(y, x))], axis=0))],
    ),
    "many parts": (
        [(7, 3)] * 12,
        lambda e, *xs: [e(R.add(e(R.concat([e(R.sin(x)) for x in xs], axis=1)), one()))],
    ),
    "pad": ([(9, 30)], lambda e, x: [e(R.exp(e(R.nn.pad(x, (1, 2, 3, 4)))))]),
    "pad image": ([(2, 3, 40, 41)], lambda e, x: [e(R.add(e(R.nn.pad(x, (0, 0, 0, 0, 1, 1, 1, 1))), one()))]),
    "halves": (
        [(9, 86)],
        lambda e, x: [
            e(
                R.multiply(
                    e(R.strided_slice(x, [1], [0], [43])), e(R.exp(e(R.strided_slice(x, [1], [43], [86]))))
                )
            )
        ],
    ),
    "every second": ([(9, 86)], lambda e, x: [e(R.exp(e(R.strided_slice(x, [1], [0], [86], [2]))))]),
    "broadcasts": (
        [(4, 1, 9), (1, 5, 9), (4, 5, 1)],
        lambda e, x, y, z: [e(R.add(e(R.multiply(x, y)), e(R.exp(z))))],
    ),
    "channels": ([(3, 5, 7, 7), (5, 1, 1)], lambda e, x, y: [e(R.nn.relu(e(R.add(x, y))))]),
    "narrow": ([(1000, 3), (3,)], lambda e, x, y: [e(R.nn.relu(e(R.add(x, y))))]),
}


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


# What LLVM gets.

VECTOR_STORE = re.compile(r"store <(8|16|32) x float>")
LIBM = re.compile(r"call [^\n]*@(expf?|tanhf?|erff?|logf?|powf?|exp2f?)\(")


@pytest.mark.parametrize("name", ["softmax_add_layer_norm_gelu", "lstm_cell", "swiglu", "log_softmax"])
def test_inner_loops_are_vector_code(name: str) -> None:
    case = next(c for c in cases("test") if c.name == name)
    source = Compiled(case.build()).source
    assert VECTOR_STORE.search(source)
    assert not LIBM.search(source)


def test_lanes_over_rows_are_vector_code() -> None:
    compiled = check([(2, 6, 64)], [F32], softmax(1))
    assert compiled.mappings[0].lanes is Lanes.ROWS
    assert VECTOR_STORE.search(compiled.source) and not LIBM.search(compiled.source)


@pytest.mark.parametrize("channels", [8, 24, 64, 65])
@pytest.mark.parametrize("batch", [1, 3])
def test_pooling_with_channels_last_is_vector_code(batch: int, channels: int) -> None:
    """Whether a tap lies in the padding is asked once a vector; ``unroll`` stands where lanes would branch apart."""

    def body(emit: Callable, x: relax.Expr, scale: relax.Expr) -> list[relax.Expr]:
        scaled = emit(R.nn.relu(emit(R.multiply(x, scale))))
        return [emit(R.nn.max_pool2d(scaled, (3, 3), (2, 2), (1, 1), layout="NHWC"))]

    shapes = [(batch, 15, 14, channels), (channels,)]
    compiled = Compiled(build(shapes, [F32] * 2, body))
    assert compiled.mappings[0].lanes is Lanes.ROWS
    x, scale = (draw(shape, F32) for shape in shapes)
    padded = np.pad(np.maximum(x * scale, 0), ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
    found = compiled.main(tvm.runtime.tensor(x), tvm.runtime.tensor(scale)).numpy()
    np.testing.assert_array_equal(found, windows.max((-1, -2)))
    with tvm.target.Target("llvm"):
        passes = planning_passes(tvm.target.Target("llvm"), StitchConfig())
        scheduled = tvm.transform.Sequential(passes)(build(shapes, [F32] * 2, body)).script()
    assert "T.vectorized" in scheduled and "T.unroll" not in scheduled


def test_conditions_are_resolved_by_parts() -> None:
    compiled = check(*_shapes("concat"), MOVES["concat"][1])
    assert compiled.mappings[0].inner[693].cuts == (0, 30, 77)
    assert VECTOR_STORE.search(compiled.source) and not LIBM.search(compiled.source)


def _shapes(name: str) -> tuple[list[tuple[int, ...]], list[str]]:
    return MOVES[name][0], [F32] * len(MOVES[name][0])


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
