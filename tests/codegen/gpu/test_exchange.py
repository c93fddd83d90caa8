# SPDX-License-Identifier: Apache-2.0
"""Rows over several blocks: partial results through clusters and grid barriers, in the emulator against float64."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.relax import op as R

import tvm_stitch.relax
from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import build, check_emulated, cuda_source, draw
from tvm_stitch.config import StitchConfig
from tvm_stitch.plan.gpu.mapping import CrossBlockReduction, RowMapping
from tvm_stitch.plan.gpu.tile import map_rows
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING
from tvm_stitch.testing.workloads import cases

Emit = Callable[[relax.Expr], relax.Expr]
F32 = "float32"


def force(monkeypatch: pytest.MonkeyPatch, segments: int, exchange: CrossBlockReduction) -> None:
    """Force every row to take so many blocks, even if that does not pay."""

    def mapping(alignment: Any, sched: Any, device: Any, config: StitchConfig) -> RowMapping:
        chosen = exchange if alignment.graph.reduces else CrossBlockReduction.NONE
        return replace(map_rows(alignment, sched, device, segments), exchange=chosen)

    monkeypatch.setattr("tvm_stitch.plan.strategies.split.choose_mapping", mapping)


def softmax(emit: Emit, x: Any) -> Any:
    e = emit(R.exp(emit(R.subtract(x, emit(R.max(x, -1, True))))))
    return R.divide(e, emit(R.sum(e, -1, True)))


def softmax_of(shape: Sequence[int], dtype: str = F32) -> tvm.IRModule:
    return build(softmax, (shape, dtype))


@pytest.mark.parametrize(
    "exchange", [CrossBlockReduction.CLUSTER, CrossBlockReduction.GRID], ids=lambda e: e.name
)
@pytest.mark.parametrize("segments", [2, 3, 8])
@pytest.mark.parametrize("columns", [8, 1025, 4096, 30000, 50001])
@pytest.mark.parametrize("rows", [1, 3])
def test_softmax(
    monkeypatch: pytest.MonkeyPatch, exchange: CrossBlockReduction, segments: int, columns: int, rows: int
) -> None:
    force(monkeypatch, segments, exchange)
    done = check_emulated(softmax_of((rows, columns)), draw([((rows, columns), F32)]))
    (launch,) = done.launches
    assert launch.grid[0] == rows * segments
    assert launch.cluster[0] == (segments if exchange is CrossBlockReduction.CLUSTER else 1)
    assert launch.cooperative == (exchange is CrossBlockReduction.GRID)


BOTH = pytest.mark.parametrize(
    "exchange", [CrossBlockReduction.CLUSTER, CrossBlockReduction.GRID], ids=lambda e: e.name
)


@BOTH
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("columns", [1030, 9001])
def test_softmax_in_each_float(
    monkeypatch: pytest.MonkeyPatch, exchange: CrossBlockReduction, dtype: str, columns: int
) -> None:
    force(monkeypatch, 4, exchange)
    check_emulated(softmax_of((3, columns), dtype), draw([((3, columns), dtype)]))


@BOTH
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integers(monkeypatch: pytest.MonkeyPatch, exchange: CrossBlockReduction, dtype: str) -> None:
    """Reductions of one level share an exchange, whatever they combine."""

    def body(emit: Emit, x: Any) -> Any:
        high, low = emit(R.max(x, -1, True)), emit(R.min(x, -1, True))
        return [emit(R.subtract(x, high)), emit(R.add(x, low)), high]

    force(monkeypatch, 3, exchange)
    check_emulated(build(body, ((2, 2311), dtype)), draw([((2, 2311), dtype)]))


@BOTH
def test_reductions_of_several_types_share_an_exchange(
    monkeypatch: pytest.MonkeyPatch, exchange: CrossBlockReduction
) -> None:
    """int64, float32 (from float16) and int8: slots have the size of the largest."""

    def body(emit: Emit, x: Any, n: Any, small: Any) -> Any:
        count, total = emit(R.sum(n, -1, True)), emit(R.sum(x, -1, True))
        low = emit(R.astype(emit(R.min(small, -1, True)), "float16"))
        scaled = emit(R.multiply(emit(R.add(x, low)), emit(R.astype(count, "float16"))))
        return [emit(R.add(scaled, total)), count, total]

    shape = (2, 1500)
    specs = [(shape, "float16"), (shape, "int64"), (shape, "int8")]
    inputs = draw(specs, low=0.0, high=0.01)
    force(monkeypatch, 2, exchange)
    mod = build(body, *specs)
    check_emulated(mod, inputs)
    source = kernel(mod)
    assert source.count("grid_sync();") + waits(source) == 1


@BOTH
@pytest.mark.parametrize("combiner", ["all", "any"])
def test_booleans(monkeypatch: pytest.MonkeyPatch, exchange: CrossBlockReduction, combiner: str) -> None:
    """One element decides, in whichever segment it lies."""
    join, start = {"all": (tirx.And, True), "any": (tirx.Or, False)}[combiner]
    reducer = te.comm_reducer(lambda a, b: join(a, b), lambda dtype: tirx.const(start, dtype))

    def fold(x: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, x.shape[1]))
        return te.compute((x.shape[0],), lambda i: reducer(x[i, k], axis=k), name=combiner)

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([3, 2500], "bool"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.call_te(fold, x))
        builder.emit_func_output(out)
    force(monkeypatch, 4, exchange)
    target = emulated_target()
    for place in (0, 1300, 2499):
        value = np.full((3, 2500), start)
        value[1, place] = not start
        run = run_cuda(
            builder.get(),
            [value],
            target=target,
            relax_pipeline=tvm_stitch.relax.pipeline(target),
            tir_pipeline=LOWERING,
        ).check()
        assert run.launches[0].grid[0] == 12
        np.testing.assert_array_equal(run.outputs[0], [start, not start, start])


@BOTH
def test_chained_reductions(monkeypatch: pytest.MonkeyPatch, exchange: CrossBlockReduction) -> None:
    """Five levels, each reading the one before: the slots of one exchange are not those of the next."""

    def body(emit: Emit, x: Any) -> Any:
        for _ in range(5):
            x = emit(R.subtract(x, emit(R.mean(emit(R.multiply(x, x)), -1, True))))
        return [x]

    force(monkeypatch, 4, exchange)
    for seed in range(3):
        check_emulated(build(body, ((2, 1777), F32)), draw([((2, 1777), F32)], low=-0.5, high=0.5), seed=seed)


@BOTH
@pytest.mark.parametrize("sizes", [(2000, 77), (1, 3000), (1500, 1500)], ids=str)
def test_columns_of_two_lengths(
    monkeypatch: pytest.MonkeyPatch, exchange: CrossBlockReduction, sizes: tuple[int, int]
) -> None:
    """Two column spaces share the rows: what one level reduces of both is exchanged together."""

    def body(emit: Emit, x: Any, y: Any) -> Any:
        high, total = emit(R.max(x, -1, True)), emit(R.sum(emit(R.exp(y)), -1, True))
        return [emit(R.multiply(x, total)), emit(R.multiply(y, high))]

    specs = [((3, n), F32) for n in sizes]
    force(monkeypatch, 4, exchange)
    mod = build(body, *specs)
    check_emulated(mod, draw(specs), launches=None)


@BOTH
def test_segments_past_the_end_of_the_row(
    monkeypatch: pytest.MonkeyPatch, exchange: CrossBlockReduction
) -> None:
    """Eight blocks for what one covers: seven add nothing, to a maximum below zero neither."""
    force(monkeypatch, 8, exchange)
    for columns in (1, 5, 130):
        inputs = [-1 - draw([((2, columns), F32)], low=0.0)[0]]
        check_emulated(build(lambda emit, x: R.max(x, -1, True), ((2, columns), F32)), inputs)
        check_emulated(softmax_of((2, columns)), inputs)


@BOTH
@pytest.mark.parametrize("columns", [300_000, 300_001])
def test_rows_that_no_registers_hold(
    monkeypatch: pytest.MonkeyPatch, exchange: CrossBlockReduction, columns: int
) -> None:
    """Kept in the shared memory of several blocks, each its segment."""

    def body(emit: Emit, x: Any, y: Any) -> Any:
        return [softmax(emit, emit(R.add(x, y)))]

    force(monkeypatch, 8, exchange)
    specs = [((1, columns), F32), ((1, columns), F32)]
    check_emulated(build(softmax, specs[0]), draw(specs[:1]))
    check_emulated(build(body, *specs), draw(specs))


@BOTH
@pytest.mark.parametrize("columns", [120_000, 120_001])
def test_segments_that_take_several_steps(
    monkeypatch: pytest.MonkeyPatch, exchange: CrossBlockReduction, columns: int
) -> None:
    """A segment that no memory on chip holds is swept anew in steps: each block begins behind all of them."""
    made: list[RowMapping] = []

    def mapping(alignment: Any, sched: Any, device: Any, config: StitchConfig) -> RowMapping:
        made.append(replace(map_rows(alignment, sched, device, 2), exchange=exchange))
        return made[-1]

    monkeypatch.setattr("tvm_stitch.plan.strategies.split.choose_mapping", mapping)
    check_emulated(softmax_of((1, columns)), draw([((1, columns), F32)]))
    assert all(m.row_splits == 2 and m.of(columns).steps > 1 for m in made)


def test_an_exchange_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, 2, CrossBlockReduction.NONE)
    with pytest.raises(Exception, match="2 blocks a row, and their exchange is none"):
        cuda_source(softmax_of((2, 4096)), StitchConfig(strict=True))


# -- as planned ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(1, 1025), (1, 30000), (1, 300_001), (3, 50001), (7, 30000), (64, 30000), (64, 9001)], ids=str
)
def test_planned_softmax(shape: tuple[int, int]) -> None:
    check_emulated(softmax_of(shape), draw([(shape, F32)]))


def test_the_maximum_of_a_whole_tensor() -> None:
    """An all-reduce on all blocks that the device holds at once, more than a warp reads in one round."""
    shape = (1, 1_200_000)

    def body(emit: Emit, x: Any) -> Any:
        return [R.subtract(x, emit(R.max(x, None, True)))]

    done = check_emulated(build(body, (shape, F32)), draw([(shape, F32)]))
    assert done.launches[0].cooperative and done.launches[0].grid[0] > 64


@pytest.mark.parametrize("seed", [1, 2])
def test_chained_full_reductions(seed: int) -> None:
    shape = (600_001,)

    def body(emit: Emit, x: Any) -> Any:
        centred = emit(R.subtract(x, emit(R.mean(x))))
        return [R.divide(centred, emit(R.sqrt(emit(R.mean(emit(R.multiply(centred, centred)))))))]

    done = check_emulated(build(body, (shape, F32)), draw([(shape, F32)]), seed=seed)
    assert done.launches[0].cooperative


def test_a_norm_over_tensors_of_several_sizes_takes_one_barrier() -> None:
    """Every tensor is reduced to a scalar and scaled by the norm of all: clipping by the global norm."""
    sizes = [(300_000,), (77, 129), (5,), (1, 4096)]

    def body(emit: Emit, *tensors: Any) -> Any:
        total = None
        for x in tensors:
            square = emit(R.sum(emit(R.multiply(x, x))))
            total = square if total is None else emit(R.add(total, square))
        norm = emit(R.sqrt(total))
        return [emit(R.divide(x, norm)) for x in tensors] + [norm]

    specs = [(size, F32) for size in sizes]
    mod = build(body, *specs)
    for seed in range(2):
        done = check_emulated(mod, draw(specs, seed), seed=seed)
        assert done.launches[0].cooperative and done.launches[0].grid[0] > 32
    assert kernel(mod).count("grid_sync();") == 1


def test_heavy_rows_without_reductions() -> None:
    """Segments that have nothing to exchange."""
    specs = [((3, 1), F32), ((3, 70_001), F32)]
    mod = build(lambda emit, x, y: R.add(emit(R.tanh(x)), y), *specs)
    done = check_emulated(mod, draw(specs))
    assert done.launches[0].grid[0] > 3 and not done.launches[0].cooperative


@pytest.mark.parametrize("shape", [(2, 20, 60, 60), (3, 17, 61, 59)], ids=str)
def test_channels(shape: tuple[int, int, int, int]) -> None:
    """Batch normalisation over strided columns, two or more blocks a channel."""

    def body(emit: Emit, x: Any) -> Any:
        centred = emit(R.subtract(x, emit(R.mean(x, [0, 2, 3], True))))
        variance = emit(R.mean(emit(R.multiply(centred, centred)), [0, 2, 3], True))
        return [R.divide(centred, emit(R.sqrt(emit(R.add(variance, relax.const(1e-3, F32)))))), variance]

    check_emulated(build(body, (shape, F32)), draw([(shape, F32)]))


def test_group_norm() -> None:
    case = cases.group_norm_silu(2, 4, 2, 20_000)
    check_emulated(case.build(), case.inputs(np.random.default_rng(0)))


# -- the source ------------------------------------------------------------------------------------------------


def kernel(mod: tvm.IRModule) -> str:
    """Return the body of the one kernel of a module."""
    source = cuda_source(mod)
    return source[source.rindex('extern "C" __global__') :]


def waits(source: str) -> int:
    """Count the exchanges of a cluster that a kernel waits for."""
    return len(re.findall(r"try_wait\w*\(", source))


def variance_of(shape: Sequence[int]) -> tvm.IRModule:
    """Compute a mean and the sum of squares around it: the second sum waits for the first."""

    def body(emit: Emit, x: Any) -> Any:
        apart = emit(R.subtract(x, emit(R.mean(x, -1, True))))
        return R.multiply(x, emit(R.mean(emit(R.multiply(apart, apart)), -1, True)))

    return build(body, (shape, F32))


def test_a_cluster_meets_once_before_and_waits_once_an_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is acquired at the cluster's scope but at the start, and no block barrier is in between."""
    force(monkeypatch, 2, CrossBlockReduction.CLUSTER)
    source = kernel(variance_of((64, 30000)))
    assert source.count("arrive_relaxed_aligned();") == 1 == source.count("wait_acquire_aligned();")
    assert (
        waits(source) == 2
        and len(re.findall(r"ptx_mbarrier_init\w*\(", source)) == 2
        and "acquire_cluster" not in source
    )
    assert "arrive_release" not in source and "__syncthreads" not in source


def test_a_grid_barrier_an_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, 4, CrossBlockReduction.GRID)
    assert kernel(variance_of((3, 30000))).count("grid_sync();") == 2


@BOTH
def test_a_rescaled_sum_is_exchanged_with_its_maximum(
    monkeypatch: pytest.MonkeyPatch, exchange: CrossBlockReduction
) -> None:
    force(monkeypatch, 4, exchange)
    source = kernel(softmax_of((3, 30000)))
    assert waits(source) + source.count("grid_sync();") == 1


@BOTH
@pytest.mark.parametrize("columns", [1500, 4096])
def test_rescaled_sums_of_infinities(
    monkeypatch: pytest.MonkeyPatch, exchange: CrossBlockReduction, columns: int
) -> None:
    """Warps, blocks and whole rows of -inf, and inf or nan among others: as the formula has it."""
    x = draw([((6, columns), F32)])[0]
    x[0], x[1, : columns // 2], x[2, 100], x[3, 5], x[4] = -np.inf, -np.inf, np.inf, np.nan, -1e38
    force(monkeypatch, 4, exchange)
    target = emulated_target()
    pipeline = tvm_stitch.relax.pipeline(target)
    run = run_cuda(
        softmax_of((6, columns)), [x], target=target, relax_pipeline=pipeline, tir_pipeline=LOWERING
    ).check()
    with np.errstate(all="ignore"):
        e = np.exp(x.astype("float64") - x.astype("float64").max(-1, keepdims=True))
        expected = e / e.sum(-1, keepdims=True)
    np.testing.assert_allclose(run.outputs[0], expected, rtol=1e-5, atol=1e-7)


def test_launch_bounds_keep_the_blocks_resident() -> None:
    assert re.search(r"__launch_bounds__\(512, 2\)", kernel(softmax_of((1, 1_500_000))))


@pytest.mark.parametrize(
    ("shape", "dtype"), [((64, 30000), F32), ((1, 1_500_000), F32), ((64, 100_000), "float16")], ids=str
)
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_sources_compile(tmp_path: Path, shape: tuple[int, int], dtype: str) -> None:
    """Without spilling: what a plan keeps in registers is in registers."""
    file = tmp_path / "kernel.cu"
    file.write_text(cuda_source(softmax_of(shape, dtype)))
    command = [
        "nvcc",
        "-arch=sm_90",
        "--use_fast_math",
        "-Xptxas",
        "-v",
        "-cubin",
        "-o",
        str(tmp_path / "k"),
        str(file),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 bytes spill stores" in done.stderr
