# SPDX-License-Identifier: Apache-2.0
"""Thread mappings on GPUs: packing, vectors, long rows, and never more than a device has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import H200, build, graph, plan, symbol
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import GPUS
from tvm_stitch.graph.dtype import item_bytes
from tvm_stitch.graph.extent import ByExtent
from tvm_stitch.plan.gpu import tile
from tvm_stitch.plan.gpu.mapping import ColumnMapping, CrossBlockReduction, RowMapping, Storage
from tvm_stitch.plan.gpu.occupancy import blocks_per_sm
from tvm_stitch.plan.gpu.tile import MOST_BLOCKS, stage_bytes
from tvm_stitch.plan.in_block import plan_in_block
from tvm_stitch.plan.iteration.alignment import align
from tvm_stitch.plan.iteration.loops import schedule
from tvm_stitch.plan.kernel import KernelPlan
from tvm_stitch.plan.shared_memory import shared_bytes
from tvm_stitch.testing.workloads import cases

F32 = "float32"


ONE_BLOCK = StitchConfig(clusters=False, grid_barriers=False)
"""A row stays in one block."""


def softmax(rows: Any, columns: int, dtype: str = F32, config: StitchConfig | None = None) -> KernelPlan:
    return plan_in_block(graph(cases.softmax(rows, columns, dtype).build()), H200, config)


@pytest.mark.parametrize("columns", [1, 2, 4, 8, 16, 24, 32, 64, 100, 128, 1000, 1024, 4096, 8192])
def test_threads_of_a_row_grow_with_it(columns: int) -> None:
    """At least half of the lanes have work, and no thread more than its registers hold."""
    mapping = softmax(65536, columns).stage.mapping
    vectors = columns // mapping.of(columns).vector
    assert mapping.threads <= max(1, 2 * vectors)
    assert mapping.of(columns).chunks * mapping.of(columns).vector <= 64
    if columns <= 128:
        assert mapping.threads <= 32, "no barrier for a row that a warp can take"


def test_four_lanes_take_a_row_of_32() -> None:
    """AStitch's <750000,32>: many rows in a block, no idle lanes, two vectors a thread."""
    mapping = softmax(750_000, 32).stage.mapping
    assert mapping.threads == 4 and mapping.rows_per_block >= 8
    assert mapping.of(32) == ColumnMapping(4, 2)


def test_few_long_rows_take_whole_blocks() -> None:
    """AStitch's <64,30000>."""
    mapping = softmax(64, 30000, config=ONE_BLOCK).stage.mapping
    assert mapping.threads == 1024 and mapping.rows_per_block == 1 and mapping.storage is Storage.REGISTERS


def test_few_rows_take_more_threads_each() -> None:
    many, few = softmax(65536, 1024).stage.mapping, softmax(64, 1024).stage.mapping
    assert few.threads > many.threads and few.rows_per_block <= many.rows_per_block
    assert softmax(200, 128).stage.mapping.rows_per_block < softmax(65536, 128).stage.mapping.rows_per_block


@pytest.mark.parametrize(
    ("dtype", "columns", "vector"),
    [
        (F32, 1024, 4),
        (F32, 1022, 2),
        (F32, 1023, 1),
        ("float16", 1024, 8),
        ("float16", 1020, 4),
        ("bfloat16", 4096, 8),
    ],
)
def test_vectors(dtype: str, columns: int, vector: int) -> None:
    assert softmax(4096, columns, dtype).stage.mapping.of(columns).vector == vector


@pytest.mark.parametrize("device, lanes", [("v100", 4), ("t4", 4), ("a100", 8), ("h200", 8)])
def test_vectors_of_bfloat16_are_short_where_the_device_has_none(device: str, lanes: int) -> None:
    for dtype, expected in (("bfloat16", lanes), ("float16", 8)):
        kernel_plan = plan(build(lambda emit, x: [R.exp(x)], ((1024, 1024), dtype)), GPUS[device])
        assert [mapped.vector for mapped in kernel_plan.stage.mapping.columns.values()] == [expected]


def test_element_wise_splits_columns_over_blocks() -> None:
    kernel_plan = plan(build(lambda emit, x: R.exp(x), ((1000, 1000), F32)))
    assert (
        kernel_plan.stage.mapping.split
        and kernel_plan.stage.mapping.rows_per_block == 1
        and kernel_plan.stage.mapping.of(10**6).vector == 4
    )


def test_storage_of_long_rows() -> None:
    lengths = (1024, 30000, 50000, 100000)
    assert [softmax(64, c, config=ONE_BLOCK).stage.mapping.storage for c in lengths] == [
        Storage.REGISTERS, Storage.REGISTERS, Storage.SHARED, Storage.NOWHERE,
    ]  # fmt: skip


def test_a_device_with_less_shared_memory_keeps_less() -> None:
    op_graph = graph(cases.softmax(64, 50000).build())
    assert plan_in_block(op_graph, GPUS["h200"], ONE_BLOCK).stage.mapping.shared
    for name in ("t4", "v100"):
        assert plan_in_block(op_graph, GPUS[name], ONE_BLOCK).stage.mapping.storage is Storage.NOWHERE


def test_rows_that_share_a_block_keep_nothing_in_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """No known graph makes so few threads take so long a row. Here they are forced to."""
    monkeypatch.setattr(tile, "_threads_for", lambda *_: 64)
    alignment = align(graph(cases.softmax(65536, 16384).build()), CHOICES)
    made = tile.map_rows(alignment, schedule(alignment), H200)
    assert made.rows_per_block == 2 and made.storage is Storage.NOWHERE


def test_describe_is_plain_data() -> None:
    import json

    mapping = softmax(4096, 1024).stage.mapping
    shown = mapping.describe()
    assert json.loads(json.dumps(shown)) == shown
    assert shown["block"] == mapping.block and shown["rows a block"] == mapping.rows_per_block


SIZES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "float16": 2,
    "bfloat16": 2,
    F32: 4,
    "int32": 4,
    "int64": 8,
    "float64": 8,
}


@pytest.mark.parametrize(("dtype", "size"), SIZES.items())
def test_item_bytes(dtype: str, size: int) -> None:
    assert item_bytes(dtype) == size


def check(kernel_plan: KernelPlan) -> None:
    """Check a bijection onto the columns, within the device's limits."""
    mapping, device = kernel_plan.stage.mapping, kernel_plan.device
    assert 1 <= mapping.block <= device.max_threads_per_block
    assert mapping.threads & (mapping.threads - 1) == 0, "shuffles fold powers of two"
    assert mapping.block % 32 == 0, "shuffles name all lanes of a warp"
    assert shared_bytes(kernel_plan) <= device.shared_per_block
    rows = kernel_plan.stage.alignment.domain.rows
    if isinstance(rows, int) and not mapping.split:
        assert -(-rows // (mapping.rows_per_block * mapping.tasks)) * mapping.row_splits <= MOST_BLOCKS
    if mapping.row_splits > 1:
        assert mapping.rows_per_block == mapping.tasks == 1 and mapping.threads >= 32
        assert mapping.row_splits <= device.max_cluster or mapping.exchange is not CrossBlockReduction.CLUSTER
    if mapping.exchange is CrossBlockReduction.GRID:
        registers = device.registers_per_sm // (mapping.block * mapping.blocks_per_sm)
        held = blocks_per_sm(device, mapping.block, min(255, registers), shared_bytes(kernel_plan))
        assert held >= mapping.blocks_per_sm
        assert isinstance(rows, int) and rows * mapping.row_splits <= device.sms * held
    if mapping.shared:
        assert mapping.rows_per_block == 1, "what is staged has the place of one row"
        assert (
            mapping.keep and 0 < stage_bytes(kernel_plan.stage.schedule, mapping) <= device.shared_per_block
        )
    for p in kernel_plan.stage.schedule.passes:
        cm = mapping.of(p.columns)
        assert cm.vector in (1, 2, 4, 8)
        if isinstance(p.columns, int):
            assert p.columns % cm.vector == 0
            assert mapping.split or mapping.covered(p.columns) >= p.columns
            waste = mapping.covered(p.columns) - p.columns
            if mapping.row_splits == 1:
                assert mapping.split or waste < max(p.columns, mapping.threads * cm.vector * cm.chunks)
            else:  # at most one round of vectors too much a block
                assert waste < mapping.row_splits * mapping.threads * cm.vector * cm.chunks
        if (
            mapping.keep
            and not mapping.shared
            and not mapping.split
            and kernel_plan.stage.schedule.kept_values
        ):
            assert cm.steps == 1, "what is kept in registers is covered in one step"


@given(
    st.integers(1, 100_000), st.integers(1, 120_000), st.sampled_from([F32, "float16", "bfloat16"]),
    st.sampled_from(sorted(GPUS)),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_softmax_of_any_shape_is_within_limits(rows: int, columns: int, dtype: str, device: str) -> None:
    check(plan_in_block(graph(cases.softmax(rows, columns, dtype).build()), GPUS[device]))


@given(st.integers(1, 5000), st.integers(1, 60_000), st.sampled_from(sorted(GPUS)))
@settings(max_examples=30, deadline=None)
def test_two_reductions_of_any_shape_are_within_limits(rows: int, columns: int, device: str) -> None:
    check(plan_in_block(graph(cases.softmax_add_layer_norm_gelu(rows, columns).build()), GPUS[device]))


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4), st.sampled_from([F32, "int8", "float16", "int32"])
)
@settings(max_examples=40, deadline=None)
def test_element_wise_of_any_shape_is_within_limits(shape: list[int], dtype: str) -> None:
    check(plan(build(lambda emit, x: R.maximum(x, emit(R.add(x, x))), (shape, dtype))))


@pytest.mark.parametrize("columns", [1, 33, 128, 4096, 50000])
def test_symbolic_rows_are_within_limits(columns: int) -> None:
    kernel_plan = plan(cases.softmax(4, columns, symbolic=True).build())
    check(kernel_plan)
    # Nothing is known of the number of rows: they are taken for many.
    assert kernel_plan.stage.mapping == softmax(10**6, columns, config=ONE_BLOCK).stage.mapping


def test_symbolic_element_wise() -> None:
    kernel_plan = plan(build(lambda emit, x: R.exp(x), ((symbol(), 24), F32)))
    check(kernel_plan)
    (p,) = kernel_plan.stage.schedule.passes
    assert kernel_plan.stage.mapping.of(p.columns).vector == 4, "24 n is divisible by 4"


def test_grids_have_an_end() -> None:
    """More rows than a grid may have blocks: a block takes several groups of rows, one after another."""
    made = softmax(2**33, 128)
    check(made)
    assert made.stage.mapping.tasks > 1
    assert softmax(2**20, 128).stage.mapping.tasks == 1


def test_covered_counts_what_threads_touch() -> None:
    mapping = RowMapping(32, 8, ByExtent([(100, ColumnMapping(4, 1)), (300, ColumnMapping(4, 2, 2))]))
    assert mapping.block == 256 and mapping.covered(100) == 128 and mapping.covered(300) == 512
    assert H200.max_threads_per_block == 1024


@pytest.mark.parametrize("columns", [256, 512, 1024, 2048])
def test_threads_grow_step_by_step_with_live_inputs(columns: int) -> None:
    """A row takes the largest block only where half of one is too small for it."""

    def mixed(emit: Any, *xs: Any) -> list[Any]:
        total = made = xs[0]
        for x in xs[1:]:
            total = emit(R.add(total, x))
        for x in xs[1:]:
            made = emit(R.multiply(made, x))
        return [R.divide(made, emit(R.sum(total, 1, True)))]

    found = [
        plan(build(mixed, *[((65536, columns), F32)] * inputs)).stage.mapping.threads
        for inputs in range(5, 12)
    ]
    assert all(a <= b <= 2 * a for a, b in zip(found, found[1:])), found


@pytest.mark.parametrize(
    ("rows", "dtype", "vector"),
    [(32, "float16", 1), (132, "float16", 2), (400, "float16", 4), (1024, "float16", 8), (3, "float32", 1)],
)
def test_small_kernels_spread_over_the_device(rows: int, dtype: str, vector: int) -> None:
    """Shorter vectors, until there is a block for each multiprocessor."""
    kernel_plan = plan(build(lambda emit, x: [R.exp(x)], ((rows, 512), dtype)), GPUS["h200"])
    assert [mapped.vector for mapped in kernel_plan.stage.mapping.columns.values()] == [vector]
