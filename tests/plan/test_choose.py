# SPDX-License-Identifier: Apache-2.0
"""Graphs of one row domain, graphs with a grid-wide plan, and graphs that neither serves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tvm.relax import op as R

from stitch_testing.stitch_graphs import stitch_graph
from tests.choices import CHOICES
from tests.graph.helpers import H200, build, graph, symbol
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import GPUS, DeviceModel, device_model
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.plan import choose
from tvm_stitch.plan.choose import choose_plan
from tvm_stitch.plan.gpu.mapping import CrossBlockReduction
from tvm_stitch.plan.iteration.alignment import Misaligned
from tvm_stitch.plan.verify import problems
from tvm_stitch.testing.workloads import cases, grid_cases

F32 = "float32"
CPU = device_model("llvm")
ALONE = replace(H200, name="alone", cooperative=False, max_cluster=1)
APART = StitchConfig(grid_barriers=False)


def reduced(op: Any, axis: Any, shape: tuple[Any, ...]) -> StitchGraph:
    """Reduce a value that is computed element by element."""
    return graph(build(lambda emit, x: op(emit(R.exp(x)), axis), (shape, F32)))


def joined(*op_graph: StitchGraph) -> StitchGraph:
    """Graphs that have nothing to do with each other as one."""
    return StitchGraph(
        "joined",
        [t for g in op_graph for t in g.inputs],
        [op for g in op_graph for op in g.operators],
        [t for g in op_graph for t in g.outputs],
    )


def chain(length: int) -> StitchGraph:
    """Full reductions, each of what the one before it changed."""

    def body(emit: Any, x: Any) -> Any:
        for _ in range(length):
            x = emit(R.subtract(x, emit(R.max(emit(R.exp(x))))))
        return [x]

    return stitch_graph(build(body, ((64, 64), F32)))


ONE_DOMAIN = {
    "softmax": lambda: stitch_graph(cases.softmax(64, 1024).build()),
    "symbolic rows": lambda: stitch_graph(cases.softmax(64, 1024, symbolic=True).build()),
    "element by element": lambda: graph(build(lambda emit, x: R.tanh(emit(R.exp(x))), ((31, 7), F32))),
    "rows": lambda: stitch_graph(grid_cases.row_sum(750000, 32).build()),
    "groups": lambda: stitch_graph(grid_cases.group_norm(32, 320, 32, 4096).build()),
    "rows that lie apart": lambda: stitch_graph(grid_cases.batch_norm_training_nchw(32, 64, 56, 56).build()),
    "everything": lambda: reduced(R.sum, None, (128, 1024)),
    "a chain over everything": lambda: stitch_graph(grid_cases.standardize_by_max(64, 1024).build()),
    "several tensors": lambda: stitch_graph(grid_cases.clip_adam([(7000,), (30, 40)]).build()),
    "a thread a column": lambda: reduced(R.sum, 0, (256, 262144)),
    "columns of few elements": lambda: reduced(R.sum, 0, (8, 256)),
}
GRID = {
    "columns": lambda: stitch_graph(grid_cases.column_sum(262144, 256).build()),
    "columns of what rows give": lambda: stitch_graph(grid_cases.layer_norm_backward(4096, 768).build()),
    "columns that come back": lambda: stitch_graph(grid_cases.batch_norm_training(8192, 256).build()),
    "a mean over rows": lambda: stitch_graph(grid_cases.cross_entropy(64, 30000).build()),
    "rows read along columns": lambda: stitch_graph(grid_cases.figure7(4096, 1024, 8192).build()),
    "two shapes": lambda: joined(reduced(R.max, 1, (513, 77)), reduced(R.sum, 1, (64, 1000))),
    "nine totals beside rows of few": lambda: joined(chain(3), reduced(R.max, 1, (513, 77))),
}


@pytest.mark.parametrize("name", ONE_DOMAIN)
@pytest.mark.parametrize("device", [H200, GPUS["v100"], ALONE, CPU], ids=lambda d: d.name)
def test_one_row_domain_where_it_serves(name: str, device: DeviceModel) -> None:
    assert not choose_plan(ONE_DOMAIN[name](), device).grid_wide


@pytest.mark.parametrize("name", GRID)
@pytest.mark.parametrize("device", [H200, GPUS["v100"], GPUS["t4"]], ids=lambda d: d.name)
def test_phases_where_rows_cross(name: str, device: DeviceModel) -> None:
    plan = choose_plan(GRID[name](), device)
    assert plan.grid_wide and problems(plan) == []
    assert plan.cooperative == (len(plan.phases) > 1)


@pytest.mark.parametrize("name", GRID)
def test_without_barriers_the_phases_are_kernels(name: str) -> None:
    found = GRID[name]()
    assert choose_plan(found, H200).device.cooperative
    for plan in (choose_plan(found, ALONE), choose_plan(found, H200, APART)):
        assert plan.grid_wide and problems(plan) == []
        assert not plan.shared_grid.barriers and not plan.cooperative
        assert not plan.crossing.shared  # what a block holds ends with its kernel


LONG = {
    "everything": lambda: reduced(R.sum, None, (4096, 4096)),
    "a chain over everything": lambda: stitch_graph(grid_cases.standardize_by_max(2048, 2048).build()),
    "several tensors": lambda: stitch_graph(grid_cases.clip_adam([(7_000_000,), (300, 400)]).build()),
}


@pytest.mark.parametrize("name", LONG)
def test_one_long_row_is_shared_by_all_blocks(name: str) -> None:
    """Blocks meet at grid barriers.

    Without barriers there are phases, for a cluster or a block would leave the device idle.
    """
    found = LONG[name]()
    for config in (StitchConfig(), StitchConfig(clusters=False)):
        plan = choose_plan(found, H200, config)
        assert not plan.grid_wide and plan.stage.mapping.exchange is CrossBlockReduction.GRID and plan.scratch
        assert plan.stage.mapping.row_splits >= H200.sms
    for device, config in ((H200, APART), (ALONE, StitchConfig())):
        apart = choose_plan(found, device, config)
        assert apart.grid_wide and not apart.cooperative and len(apart.phases) > 1
        assert problems(apart) == []
        assert all(part.stride >= H200.sms for part in apart.phases[0][:1])


def test_one_short_row_is_not() -> None:
    """A cluster, or a block, is done with it in the time of another launch."""
    found = ONE_DOMAIN["everything"]()
    cluster = choose_plan(found, H200, APART)
    assert not cluster.grid_wide and cluster.stage.mapping.exchange is CrossBlockReduction.CLUSTER
    for device, config in (
        (ALONE, StitchConfig()),
        (H200, StitchConfig(clusters=False, grid_barriers=False)),
    ):
        alone = choose_plan(found, device, config)
        assert (
            not alone.grid_wide
            and alone.stage.mapping.exchange is CrossBlockReduction.NONE
            and not alone.scratch
        )


@pytest.mark.parametrize("device", [H200, ALONE], ids=lambda d: d.name)
def test_columns_that_no_partition_serves_still_have_a_row_domain(
    monkeypatch: pytest.MonkeyPatch, device: DeviceModel
) -> None:
    def declined(*_: Any) -> Partition:
        raise Misaligned("not today")

    found = GRID["columns"]()
    assert choose_plan(found, device).grid_wide
    monkeypatch.setattr(choose, "grid_partition", declined)
    assert not choose_plan(found, device).grid_wide


def test_a_cpu_has_row_domains_only() -> None:
    assert not choose_plan(GRID["columns"](), CPU).grid_wide
    with pytest.raises(Misaligned, match="4096 and 768 rows|768 and 4096 rows") as told:
        choose_plan(GRID["columns of what rows give"](), CPU)
    assert "grid-wide" not in str(told.value)


def test_symbolic_sizes_are_refused_with_both_reasons() -> None:
    op_graph = joined(reduced(R.max, 1, (symbol(), 77)), reduced(R.sum, 1, (64, 1000)))
    with pytest.raises(Misaligned, match="rows; grid-wide: .* has a symbolic or empty shape"):
        choose_plan(op_graph, H200)


def test_too_many_phases_are_refused_with_both_reasons() -> None:
    op_graph = joined(chain(CHOICES.most_phases + 1), reduced(R.max, 1, (513, 77)))
    for device, config in ((H200, StitchConfig()), (H200, APART), (ALONE, StitchConfig())):
        with pytest.raises(Misaligned, match=f"rows; grid-wide: .* of at most {CHOICES.most_phases}"):
            choose_plan(op_graph, device, config)
    assert choose_plan(joined(chain(CHOICES.most_phases - 1), reduced(R.max, 1, (513, 77))), H200).grid_wide


def test_a_row_longer_than_the_chip_is_read_in_phases_that_retain() -> None:
    """Not where little of it could be kept."""
    plan = choose_plan(stitch_graph(grid_cases.standardize_by_max(4096, 4096).build()), H200)
    assert plan.grid_wide and plan.cooperative and plan.retention is not None
    vast = choose_plan(stitch_graph(grid_cases.clip_adam([(1, 100_000_000)]).build()), H200)
    assert not vast.grid_wide and not vast.stage.mapping.keep
