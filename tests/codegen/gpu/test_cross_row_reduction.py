# SPDX-License-Identifier: Apache-2.0
"""Reductions across rows in grid-wide plans: every combiner and dtype, sizes around rows, slots, tiles and blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.relax import op as R

import tvm_stitch.relax
from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import H200, build, check_emulated, draw, grid_plan
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import DeviceModel
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.plan.kernel import KernelPlan
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING

F32 = "float32"
SMALL = replace(H200, name="small", sms=5)
"""Few blocks, and no power of two of them: all of them work on little data."""

#: One row, one column, fewer rows than a block has slots, primes, more columns than a block takes at once.
SHAPES = [(1, 97), (211, 1), (5, 64), (61, 67), (257, 40), (1009, 3), (33, 513), (37, 5003)]
DTYPES = ["float32", "float64", "float16", "bfloat16", "int32", "int8"]
COMBINERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (R.sum, np.sum),
    "max": (R.max, np.max),
    "min": (R.min, np.min),
    "prod": (R.prod, np.prod),
}
TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "float16": 2e-3, "bfloat16": 1e-2}


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[KernelPlan]:
    """Every stitch op gets a grid-wide plan for a small device, even if others would serve it.

    The value has the plans.
    """
    made: list[KernelPlan] = []

    def forced(graph: StitchGraph, device: DeviceModel, config: StitchConfig) -> KernelPlan:
        made.append(grid_plan(graph, device, config.grid_barriers))
        return made[-1]

    monkeypatch.setattr("tvm_stitch.relax.stitch.schedule_stitch_ops.choose_plan", forced)
    monkeypatch.setattr("tvm_stitch.relax.stitch.schedule_stitch_ops.device_model", lambda *_: SMALL)
    monkeypatch.setattr("tvm_stitch.plan.gpu.phases.partition.has_many_results", lambda op, blocks: False)
    return made


def across_rows(plans: Sequence[KernelPlan]) -> int:
    """Count the reductions across rows of the one plan."""
    (plan,) = plans
    return len(plan.crossing.partials)


def values(shape: Sequence[int], dtype: str, combiner: str = "sum", seed: int = 0) -> np.ndarray:
    """Numbers of which the reduction can be told from that of any part of them."""
    rng = np.random.default_rng(seed)
    if "int" in dtype:
        low, high = (1, 3) if combiner == "prod" else (-9, 10)
        return rng.integers(low, high, shape).astype(dtype)
    low, high = (0.9, 1.11) if combiner == "prod" else (-1.0, 2.0)
    return rng.uniform(low, high, shape).astype(np.dtype(dtype))


def reference(x: np.ndarray, combiner: str, axis: int | None) -> np.ndarray:
    """Compute in float64 or int64, then convert to the dtype of x: integers wrap around."""
    wide = x.astype("int64" if "int" in str(x.dtype) else "float64")
    with np.errstate(over="ignore"):
        return np.asarray(COMBINERS[combiner][1](wide, axis=axis)).astype(x.dtype)


def check(found: np.ndarray, expected: np.ndarray, scale: float = 1.0) -> None:
    dtype = str(expected.dtype)
    assert found.shape == expected.shape and str(found.dtype) == dtype
    tolerance = TOLERANCE.get(dtype, 0.0)
    np.testing.assert_allclose(
        found.astype("float64"), expected.astype("float64"), rtol=tolerance, atol=tolerance * scale
    )


def run(mod: tvm.IRModule, inputs: Sequence[np.ndarray], seed: int = 1) -> list[np.ndarray]:
    """Check one launch, without findings."""
    target = emulated_target()
    done = run_cuda(
        mod,
        list(inputs),
        target=target,
        relax_pipeline=tvm_stitch.relax.pipeline(target),
        seed=seed,
        tir_pipeline=LOWERING,
    ).check()
    assert len(done.launches) == 1, [launch.name for launch in done.launches]
    return list(done.outputs)


@pytest.mark.parametrize("axis", [0, None], ids=["columns", "all"])
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_combiner(plans: list[KernelPlan], dtype: str, combiner: str, axis: int | None) -> None:
    shape = (131, 29)
    x = values(shape, dtype, combiner)
    mod = build(lambda emit, x: COMBINERS[combiner][0](x, axis), (shape, dtype))
    (found,) = run(mod, [x])
    assert across_rows(plans) == 1 and plans[0].cooperative
    check(found, reference(x, combiner, axis), scale=np.sqrt(x.size))


@pytest.mark.parametrize("axis", [0, None], ids=["columns", "all"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_several_at_once(
    plans: list[KernelPlan], dtype: str, shape: tuple[int, int], axis: int | None
) -> None:
    """Sums, maxima and minima of the same data share its reading."""
    names = ["sum", "max", "min"]
    mod = build(lambda emit, x: [emit(COMBINERS[n][0](x, axis)) for n in names], (shape, dtype))
    x = values(shape, dtype)
    found = run(mod, [x])
    assert across_rows(plans) == 3
    for name, got in zip(names, found, strict=True):
        check(got, reference(x, name, axis), scale=np.sqrt(x.size))


@pytest.mark.parametrize("axis", [0, None], ids=["columns", "all"])
@pytest.mark.parametrize("shape", [(1, 7), (140, 1), (257, 40), (35, 1201)], ids=str)
@pytest.mark.parametrize("combiner", ["all", "any"])
def test_booleans(plans: list[KernelPlan], combiner: str, shape: tuple[int, int], axis: int | None) -> None:
    """One element decides, wherever it lies."""
    join, start = {"all": (tirx.And, True), "any": (tirx.Or, False)}[combiner]
    reducer = te.comm_reducer(lambda a, b: join(a, b), lambda dtype: tirx.const(start, dtype))

    def fold(x: te.Tensor) -> te.Tensor:
        k, j = te.reduce_axis((0, shape[0])), te.reduce_axis((0, shape[1]))
        if axis is None:
            return te.compute((1,), lambda _: reducer(x[k, j], axis=[k, j]), name=combiner)
        return te.compute((shape[1],), lambda c: reducer(x[k, c], axis=k), name=combiner)

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "bool"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.call_te(fold, x))
        builder.emit_func_output(out)
    mod = builder.get()
    last = shape[0] * shape[1] - 1
    for place in sorted({0, last // 2, last}):
        given = np.full(shape, start)
        given.flat[place] = not start
        wanted = (np.all if combiner == "all" else np.any)(given, axis=axis).reshape(-1)
        (found,) = run(mod, [given])
        np.testing.assert_array_equal(found, wanted)
    assert len(plans[0].crossing.partials) == 1


@pytest.mark.parametrize("shape", [(1, 64), (300, 37), (2003, 5), (140, 1031)], ids=str)
def test_mean_of_a_row_statistic(plans: list[KernelPlan], shape: tuple[int, int]) -> None:
    """Every lane of a row holds the row's value. It counts once."""

    def body(emit: Any, x: Any) -> Any:
        e = emit(R.exp(emit(R.subtract(x, emit(R.max(x, -1, True))))))
        spread = emit(R.log(emit(R.sum(e, -1))))
        return [R.mean(spread), R.max(spread)]

    check_emulated(build(body, (shape, F32)), draw([(shape, F32)]))
    assert across_rows(plans) >= 2


@pytest.mark.parametrize("shape", [(61, 67), (300, 40), (37, 2003)], ids=str)
def test_results_that_are_outputs_and_are_read_later(plans: list[KernelPlan], shape: tuple[int, int]) -> None:
    def body(emit: Any, x: Any) -> Any:
        total, most = emit(R.sum(x, 0)), emit(R.max(x))
        return [total, most, emit(R.divide(emit(R.subtract(x, total)), most))]

    check_emulated(build(body, (shape, F32)), draw([(shape, F32)], low=0.5))
    assert across_rows(plans) == 2


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 1500), (211, 1), (67, 71)], ids=str)
def test_two_full_reductions_in_a_chain(plans: list[KernelPlan], shape: tuple[int, int], dtype: str) -> None:
    def body(emit: Any, x: Any) -> Any:
        return R.sum(emit(R.abs(emit(R.subtract(x, emit(R.max(x)))))))

    check_emulated(build(body, (shape, dtype)), draw([(shape, dtype)]))
    assert across_rows(plans) == 2 and len(plans[0].phases) == 3


@pytest.mark.parametrize("shape", [(1, 1), (211, 1), (67, 71)], ids=str)
def test_three_full_reductions_and_a_column_sum_in_a_chain(
    plans: list[KernelPlan], shape: tuple[int, int]
) -> None:
    """All totals are read in later phases again, and none of them is lost."""

    def body(emit: Any, x: Any) -> Any:
        most = emit(R.max(x))
        shifted = emit(R.subtract(x, most))
        least = emit(R.min(emit(R.exp(shifted))))
        total = emit(R.sum(emit(R.add(emit(R.exp(shifted)), least))))
        columns = emit(R.sum(emit(R.divide(emit(R.add(shifted, least)), total)), 0))
        return [emit(R.multiply(emit(R.add(columns, most)), total)), least]

    check_emulated(build(body, (shape, F32)), draw([(shape, F32)]))
    assert across_rows(plans) >= 3


@pytest.mark.parametrize("shape", [(1, 64), (300, 40), (53, 3001)], ids=str)
def test_totals_of_one_element(plans: list[KernelPlan], shape: tuple[int, int]) -> None:
    """Next to a total of many it is counted once, by any tasks and lanes of the part."""

    def body(emit: Any, x: Any) -> Any:
        mean = emit(R.exp(emit(R.mean(x, None, True))))
        return [emit(R.sum(emit(R.multiply(x, mean)))), emit(R.sum(emit(R.add(mean, mean))))]

    check_emulated(build(body, (shape, F32)), draw([(shape, F32)]))
    assert across_rows(plans) == 3


@pytest.mark.parametrize("shape", [(67, 1), (300, 40), (53, 3001)], ids=str)
def test_values_that_no_row_changes(plans: list[KernelPlan], shape: tuple[int, int]) -> None:
    """A broadcast is summed as often as it has rows."""

    def body(emit: Any, x: Any) -> Any:
        least = emit(R.exp(emit(R.max(x, 0, True))))
        wide = emit(R.broadcast_to(least, shape))
        scaled = emit(R.sum(emit(R.multiply(x, least)), 0))
        return [emit(R.sum(wide, 0)), emit(R.sum(wide)), scaled]

    check_emulated(build(body, (shape, F32)), draw([(shape, F32)]))
    assert across_rows(plans) >= 4


@pytest.mark.parametrize("shape", [(67, 1), (300, 40), (53, 3001)], ids=str)
def test_values_of_a_row_summed_over_all(plans: list[KernelPlan], shape: tuple[int, int]) -> None:
    """As a value of the row, and for each of its columns."""

    def body(emit: Any, x: Any) -> Any:
        most = emit(R.exp(emit(R.max(x, 1, True))))
        wide = emit(R.broadcast_to(most, shape))
        return [emit(R.sum(wide, 0)), emit(R.sum(wide)), emit(R.sum(most))]

    check_emulated(build(body, (shape, F32)), draw([(shape, F32)]))
    assert across_rows(plans) >= 3


def test_blocks_without_a_task_leave_no_partial_result(plans: list[KernelPlan]) -> None:
    """Three rows for five blocks: there are as many partial results as blocks that work."""
    x = values((3, 200), F32)
    (found,) = run(build(lambda emit, x: R.max(x, 0), (x.shape, F32)), [x])
    (plan,), (part,) = plans, plans[0].phases[0]
    assert part.stride * part.tiles < plan.shared_grid.blocks
    (partial,) = plan.crossing.partials.values()
    assert partial.shape[-1] == part.stride
    check(found, reference(x, "max", 0))


def test_tiles_of_columns(plans: list[KernelPlan]) -> None:
    """Columns beyond a block's are shared out over blocks, and every tile has blocks for its rows."""
    x = values((53, 4999), F32)
    found = run(build(lambda emit, x: [emit(R.sum(x, 0)), emit(R.max(x, 0))], (x.shape, F32)), [x])
    (part,) = plans[0].phases[0]
    assert part.tiles > 1 and part.tiles * part.stride <= SMALL.sms * plans[0].shared_grid.blocks_per_sm
    for name, got in zip(("sum", "max"), found, strict=True):
        check(got, reference(x, name, 0), scale=10)


def test_nan_and_infinities(plans: list[KernelPlan]) -> None:
    """A maximum of infinities does not depend on the blocks. Sums carry NaN."""
    x = values((140, 24), F32)
    x[17, 3], x[139, 5], x[70, 9] = np.inf, -np.inf, np.nan
    total, most = run(build(lambda emit, x: [emit(R.sum(x, 0)), emit(R.max(x, 0))], (x.shape, F32)), [x])
    np.testing.assert_allclose(total, x.sum(0), rtol=2e-5, atol=2e-4)
    columns = [c for c in range(24) if c != 9]  # a maximum over NaN is not said to be one
    np.testing.assert_array_equal(most[columns], x.max(0)[columns])


def test_the_order_of_blocks_does_not_show(plans: list[KernelPlan]) -> None:
    x = values((301, 40), F32)
    mod = build(lambda emit, x: [emit(R.sum(x, 0)), emit(R.sum(x))], (x.shape, F32))
    first, *others = [run(mod, [x], seed=seed) for seed in (0, 1, 2, 3)]
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)
