# SPDX-License-Identifier: Apache-2.0
"""Some rows are split over blocks. No grid with a barrier exceeds a wave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import H200, build, graph
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import GPUS, DeviceModel
from tvm_stitch.plan.gpu.mapping import CrossBlockReduction, Storage
from tvm_stitch.plan.gpu.occupancy import blocks_per_sm
from tvm_stitch.plan.gpu.tile import map_rows
from tvm_stitch.plan.in_block import plan_in_block
from tvm_stitch.plan.kernel import KernelPlan
from tvm_stitch.plan.memory import traffic
from tvm_stitch.plan.shared_memory import shared_bytes
from tvm_stitch.plan.strategies.split import estimate
from tvm_stitch.records.describe import describe
from tvm_stitch.testing.workloads import cases

F32 = "float32"
WITHOUT_COPIES = replace(H200, background_copies=False)


def softmax(
    rows: int, columns: int, device: DeviceModel = H200, config: StitchConfig | None = None
) -> KernelPlan:
    return plan_in_block(graph(cases.softmax(rows, columns).build()), device, config)


def working_sms(kernel_plan: KernelPlan) -> int:
    """Multiprocessors that have at least one block with columns of its own."""
    m, rows = kernel_plan.stage.mapping, kernel_plan.stage.alignment.domain.rows
    assert isinstance(rows, int)
    lengths = [p.columns for p in kernel_plan.stage.schedule.passes if isinstance(p.columns, int)]
    busy = max(-(-e // m.block_columns(e)) for e in lengths)
    return min(kernel_plan.device.sms, -(-rows // m.rows_per_block) * min(busy, m.row_splits))


def test_64_rows_of_30000_take_two_blocks_each() -> None:
    """AStitch's <64,30000>: 128 of 132 multiprocessors work, the row in registers."""
    made = softmax(64, 30000)
    assert working_sms(made) >= 120
    assert (made.stage.mapping.row_splits, made.stage.mapping.exchange) == (2, CrossBlockReduction.CLUSTER)
    assert made.stage.mapping.storage is Storage.REGISTERS


def test_750000_rows_of_32_are_packed() -> None:
    """AStitch's <750000,32>: horizontally, with at least 90% of a warp's lanes at work."""
    made = softmax(750_000, 32)
    m = made.stage.mapping
    vectors = -(-32 // m.of(32).vector)
    busy = vectors / (m.threads * m.of(32).chunks)
    assert m.row_splits == 1 and m.rows_per_block > 1 and busy >= 0.9
    assert m.block % 32 == 0 and m.block >= 128


@pytest.mark.parametrize("rows", [16, 24, 33, 44, 64, 66])
@pytest.mark.parametrize("columns", [20_000, 30_000, 50_000, 100_000])
def test_few_long_rows_are_split(rows: int, columns: int) -> None:
    """Nothing packs a shape that splitting serves: the busiest multiprocessor has less to do."""
    made = softmax(rows, columns)
    assert made.stage.mapping.row_splits > 1 and made.stage.mapping.rows_per_block == 1
    share = -(-rows * made.stage.mapping.row_splits // H200.sms) / made.stage.mapping.row_splits
    assert share <= 0.5


@pytest.mark.parametrize("rows", [1, 7, 64, 131])
@pytest.mark.parametrize("columns", [32, 1000, CHOICES.split_columns])
def test_short_rows_are_never_split(rows: int, columns: int) -> None:
    assert softmax(rows, columns).stage.mapping.row_splits == 1


@pytest.mark.parametrize("columns", [2000, 8192, 30000])
def test_rows_that_fill_the_device_are_not_split(columns: int) -> None:
    assert softmax(H200.sms, columns).stage.mapping.row_splits == 1
    assert softmax(10_000, columns, WITHOUT_COPIES).stage.mapping.row_splits == 1


@pytest.mark.parametrize("columns", [50_000, 100_000])
def test_rows_beyond_the_registers_of_a_block_live_in_a_cluster(columns: int) -> None:
    made = softmax(2048, columns, WITHOUT_COPIES)
    assert (
        made.stage.mapping.exchange is CrossBlockReduction.CLUSTER
        and made.stage.mapping.storage is Storage.REGISTERS
    )
    moved = traffic(made)
    assert moved.read + moved.written == moved.least
    alone = softmax(2048, columns, WITHOUT_COPIES, StitchConfig(clusters=False))
    assert alone.stage.mapping.row_splits == 1


def test_rows_that_a_cluster_shares_move_no_byte_twice() -> None:
    """No byte moves twice if the cluster's blocks find the values again."""
    made = softmax(2048, 70_000)
    assert made.stage.mapping.exchange is CrossBlockReduction.CLUSTER
    moved = traffic(made)
    assert moved.read + moved.written == moved.least
    assert softmax(2048, 70_000, config=StitchConfig(clusters=False)).stage.mapping.row_splits == 1


@pytest.mark.parametrize(
    ("device", "columns"),
    [
        ("h200", 30_000),
        *((name, 1 << n) for name in ("h200", "h100") for n in (16, 17, 18)),
        ("h200", 32_768),
    ],
)
def test_long_rows_of_half_types_are_read_again_from_the_cache(device: str, columns: int) -> None:
    """As few blocks a row as leave the rows at work, read and written, in it."""
    rows, model = (1 << 27) // columns, replace(GPUS[device], background_copies=False)
    kernel_plan = plan_in_block(graph(cases.softmax(rows, columns, "bfloat16").build()), model)
    m = kernel_plan.stage.mapping
    assert m.storage is Storage.CACHE and not kernel_plan.stage.schedule.kept_loads
    assert m.threads * m.blocks_per_sm == 1024 <= model.threads_per_sm
    at_work = model.sms * m.blocks_per_sm / m.row_splits * columns * 2 * 2
    assert at_work <= CHOICES.cache_fill * model.l2_bytes
    smaller = m.threads == 256 or m.row_splits == model.max_cluster
    assert (
        m.row_splits == 1
        or smaller
        and (m.row_splits == 2 or 2 * at_work > CHOICES.cache_fill * model.l2_bytes)
    )
    moved = traffic(kernel_plan)
    assert moved.read + moved.written == moved.least


@pytest.mark.parametrize("device", ["rtx3090", "a100"])
def test_rows_that_no_cache_holds_are_not_said_to_come_from_one(device: str) -> None:
    def body(_emit: Any, x: Any, weight: Any) -> Any:
        return R.nn.rms_norm(x, weight, [-1], 1e-6)

    for rows, columns in ((2048, 65_536), (1024, 131_072)):
        mod = build(body, ((rows, columns), "bfloat16"), ((columns,), "bfloat16"))
        assert plan_in_block(graph(mod), GPUS[device]).stage.mapping.storage is not Storage.CACHE


def test_rows_of_48_kib_stay_in_registers() -> None:
    for dtype, columns in (("bfloat16", 24_576), ("float32", 12_288)):
        kernel_plan = plan_in_block(graph(cases.softmax(5000, columns, dtype).build()), WITHOUT_COPIES)
        assert (
            kernel_plan.stage.mapping.storage is Storage.REGISTERS
            and kernel_plan.stage.mapping.row_splits == 1
        )


def test_one_row_takes_the_whole_device() -> None:
    """A full reduction: all blocks that are resident at once, in registers while the tensor fits."""
    small, large = softmax(1, 2_000_000), softmax(1, 100_000_000)
    for made in (small, large):
        assert made.stage.mapping.exchange is CrossBlockReduction.GRID and working_sms(made) == H200.sms
        assert [s.shape for s in made.scratch] == [(1, made.stage.mapping.row_splits)] * 2
    assert small.stage.mapping.storage is Storage.REGISTERS and large.stage.mapping.storage is Storage.NOWHERE


def test_one_row_that_a_cluster_serves_needs_no_grid_barrier() -> None:
    made = softmax(1, 30_000)
    assert made.stage.mapping.exchange is CrossBlockReduction.CLUSTER and not made.scratch


def check_wave(kernel_plan: KernelPlan) -> None:
    m, device, rows = kernel_plan.stage.mapping, kernel_plan.device, kernel_plan.stage.alignment.domain.rows
    assert isinstance(rows, int)
    registers = min(255, device.registers_per_sm // (m.block * m.blocks_per_sm))
    held = blocks_per_sm(device, m.block, registers, shared_bytes(kernel_plan))
    assert held >= m.blocks_per_sm >= 1 and rows * m.row_splits <= m.blocks_per_sm * device.sms


@given(st.integers(1, 132), st.integers(1025, 5_000_000), st.sampled_from(sorted(GPUS)))
@settings(max_examples=60, deadline=None)
def test_a_grid_with_a_barrier_is_one_wave(rows: int, columns: int, device: str) -> None:
    made = softmax(rows, columns, GPUS[device], StitchConfig(clusters=False))
    if made.stage.mapping.exchange is CrossBlockReduction.GRID:
        check_wave(made)
    assert made.stage.mapping.exchange is not CrossBlockReduction.CLUSTER


def test_values_of_a_grid_kept_in_shared_memory_leave_room_for_its_blocks() -> None:
    made = softmax(1, 6_600_000)
    assert made.stage.mapping.shared and made.stage.mapping.exchange is CrossBlockReduction.GRID
    check_wave(made)


def test_devices_without_clusters_use_a_grid_barrier() -> None:
    assert softmax(8, 500_000, GPUS["a100"]).stage.mapping.exchange is CrossBlockReduction.GRID
    for device in GPUS.values():
        if device.max_cluster == 1:
            assert softmax(16, 100_000, device).stage.mapping.exchange is not CrossBlockReduction.CLUSTER


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_switches(rows: int) -> None:
    columns = 2_000_000
    off = StitchConfig(clusters=False, grid_barriers=False)
    made = softmax(rows, columns, config=off)
    assert (
        made.stage.mapping.row_splits == 1
        and made.stage.mapping.exchange is CrossBlockReduction.NONE
        and not made.scratch
    )
    without = softmax(rows, columns, config=StitchConfig(grid_barriers=False))
    assert without.stage.mapping.exchange is CrossBlockReduction.CLUSTER and not without.scratch
    assert (
        softmax(1, columns, config=StitchConfig(clusters=False)).stage.mapping.exchange
        is CrossBlockReduction.GRID
    )


def test_symbolic_rows_are_not_split() -> None:
    kernel_plan = plan_in_block(graph(cases.softmax(4, 50_000, symbolic=True).build()), H200)
    assert kernel_plan.stage.mapping.row_splits == 1


def batch_norm(emit: Any, x: Any) -> Any:
    """Normalise each channel of <N,C,H,W> over the batch and the image."""
    centred = emit(R.subtract(x, emit(R.mean(x, [0, 2, 3], True))))
    variance = emit(R.mean(emit(R.multiply(centred, centred)), [0, 2, 3], True))
    return R.divide(centred, emit(R.sqrt(variance)))


def test_channels_are_split() -> None:
    """Training's batch normalisation <32,64,56,56>: 64 rows whose columns are strided."""
    kernel_plan = plan_in_block(graph(build(batch_norm, ((32, 64, 56, 56), F32))), H200)
    assert (kernel_plan.stage.mapping.row_splits, kernel_plan.stage.mapping.exchange) == (
        2,
        CrossBlockReduction.CLUSTER,
    )
    assert working_sms(kernel_plan) >= 120


def test_heavy_rows_without_reductions_need_no_exchange() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        return R.add(emit(R.tanh(x)), y)

    kernel_plan = plan_in_block(graph(build(body, ((8, 1), F32), ((8, 1_000_000), F32))), H200)
    assert (
        kernel_plan.stage.mapping.row_splits > 1
        and kernel_plan.stage.mapping.exchange is CrossBlockReduction.NONE
    )
    assert working_sms(kernel_plan) >= 120


def test_segments_cover_the_row() -> None:
    for columns in (20_000, 30_000, 50_001, 99_999):
        m = softmax(16, columns).stage.mapping
        assert m.covered(columns) == m.row_splits * m.block_columns(columns) >= columns


def test_the_estimate_sees_what_a_split_saves_and_costs() -> None:
    made = softmax(64, 30000)
    al, sched = made.stage.alignment, made.stage.schedule
    whole, split = (map_rows(al, sched, H200, s) for s in (1, 2))
    halves, barrier = (
        replace(split, exchange=exchange)
        for exchange in (CrossBlockReduction.CLUSTER, CrossBlockReduction.GRID)
    )
    assert estimate(al, sched, halves, H200) < estimate(al, sched, whole, H200)
    assert estimate(al, sched, halves, H200) < estimate(al, sched, barrier, H200)


def test_explain_shows_segments_and_exchange() -> None:
    shown = describe("kernel", softmax(64, 30000)).mapping
    assert shown["blocks a row"] == 2 and shown["exchange"] == "distributed shared memory"
