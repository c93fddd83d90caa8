# SPDX-License-Identifier: Apache-2.0
"""Estimates: the kind of plan that choose_plan would make, and times that tell gains from losses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tvm.relax import op as R

from stitch_testing.random.graphs import random_graph
from stitch_testing.stitch_graphs import stitch_graphs
from tests.choices import CHOICES
from tests.graph.helpers import H200, build, graph, graphs, symbol
from tests.scope.nodes import memory
from tvm_stitch import explain
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import DeviceModel, device_model
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.plan.choose import choose, choose_plan
from tvm_stitch.plan.gpu.phases.partition import Partition
from tvm_stitch.plan.iteration.alignment import Misaligned
from tvm_stitch.scope.compose import compose
from tvm_stitch.scope.estimate import KernelEstimate, estimate_kernel, in_block
from tvm_stitch.testing.workloads import cases, grid_cases
from tvm_stitch.testing.workloads.case import Case

CONFIG = StitchConfig()


def at(op_graph: StitchGraph) -> KernelEstimate:
    return estimate_kernel(op_graph, H200, CONFIG)


def softmax_and_columns(rows: int, columns: int) -> list[StitchGraph]:
    """Row sums taken off a matrix, the sums of its columns, and both in one graph."""
    shape = (rows, columns)
    nodes = [memory("sum", ["x"], "a", shape), memory("spread", ["x", "a"], "b", shape, escapes=True)]
    last = memory("columns", ["b"], "c", shape, escapes=True)
    return [compose(nodes, {"b"}), compose([last], {"c"}), compose([*nodes, last], {"b", "c"})]


def promised(op_graph: StitchGraph, device: DeviceModel, config: StitchConfig) -> None:
    """Check that the kind of plan and its phases are those that the estimate was made of."""
    estimate, plan = estimate_kernel(op_graph, device, config), choose_plan(op_graph, device, config)
    assert estimate.grid == plan.grid_wide
    if plan.grid_wide:
        kind = choose(op_graph, device, config)
        assert isinstance(kind, Partition)
        slices = [[(p.roots, p.replicated) for p in pieces] for pieces in kind.phases]
        assert [len(pieces) for pieces in slices] == [len(stages) for stages in plan.phases]
        names = [[[op.name for op in roots] for roots, _ in pieces] for pieces in slices]
        assert names == [[[op.name for op in s.slice.roots] for s in stages] for stages in plan.phases]


DEVICES = {
    "h200": (H200, StitchConfig()),
    "without barriers": (H200, StitchConfig(grid_barriers=False)),
    "without clusters": (H200, StitchConfig(clusters=False)),
    "4 multiprocessors": (replace(H200, sms=4), StitchConfig()),
}


@pytest.mark.parametrize("case", [*cases.cases(), *grid_cases.grid_cases("gpu")], ids=lambda c: c.name)
def test_the_plan_is_what_the_estimate_promised(case: Case) -> None:
    for op_graph in graphs(case.build(), StitchConfig(max_operators=400)):
        for device, config in DEVICES.values():
            promised(op_graph, device, config)


@pytest.mark.parametrize("device", DEVICES)
def test_the_plan_of_a_random_graph_is_what_the_estimate_promised(device: str) -> None:
    for seed in range(12):
        mod = random_graph(seed, level="grid").mod
        for op_graph in stitch_graphs(mod, DEVICES[device][1]):
            promised(op_graph, *DEVICES[device])


@pytest.mark.parametrize("rows", [1, 2, 132])
@pytest.mark.parametrize("columns", [1000, 100_000, 10_000_000])
@pytest.mark.parametrize("device", DEVICES)
def test_long_rows_are_what_the_estimate_promised(rows: int, columns: int, device: str) -> None:
    """One row of ten million elements, on 132 multiprocessors, has phases that retain it."""
    promised(graph(cases.softmax(rows, columns).build()), *DEVICES[device])


@pytest.mark.parametrize("columns", [4096, 16384, 65536])
def test_sums_of_columns_too_long_for_a_block_are_kernels_of_their_own(columns: int) -> None:
    """Gradients of layer norm: what no block can hold is not joined, and no scope is given up for it in the end."""
    mod = grid_cases.layer_norm_backward(4096, columns).build()
    report = explain(mod, {"kind": "cuda", "arch": "sm_90"})
    assert len(report.kernels) == (1 if columns == 4096 else 2) and not report.left


def test_times_add_up() -> None:
    rows, columns, both = map(at, softmax_and_columns(65536, 1024))
    assert rows.seconds is not None and columns.seconds is not None and both.seconds is not None
    assert rows.moving == pytest.approx(130e-6, rel=0.02)  # 537 MB
    assert not rows.grid and columns.grid and both.grid
    assert columns.moving == pytest.approx(65e-6 / 0.87, rel=0.05)
    # Together they read what is between them never, and both at the pace of a resident grid.
    assert (
        both.moving == pytest.approx(130e-6 / 0.87, rel=0.02)
        and both.seconds < rows.seconds + columns.seconds
    )


def test_a_table_counts_by_what_is_looked_up() -> None:
    mod = build(lambda emit, t, i: R.take(t, i, axis=0), ((500_000, 768), "float32"), ((64,), "int64"))
    assert (at(graph(mod)).moving or 1.0) < 1e-6


def test_few_rows_keep_few_multiprocessors_busy() -> None:
    """Two long rows are joined with a sum of columns. A plan for the sums leaves the rows to two blocks."""

    few, many = (
        at(compose([memory("sum", ["x"], "a", s), memory("columns", ["y"], "b", (700, 64))], {"a", "b"}))
        for s in ((2, 1_000_000), (2000, 1000))
    )
    assert few.grid and many.grid and (few.moving or 0.0) > 10 * (many.moving or 0.0)


def test_symbolic_shapes_have_no_time() -> None:
    n = symbol()
    op_graph = graph(build(lambda emit, x: R.nn.softmax(x), ((n, 64), "float32")))
    assert at(op_graph) == KernelEstimate(False, None, None)


def test_without_a_gpu_only_the_row_domain_counts() -> None:
    (_, _, both) = softmax_and_columns(64, 32)
    with pytest.raises(Misaligned, match="64 and 32 rows"):
        estimate_kernel(both, device_model("llvm"), CONFIG)
    with pytest.raises(Misaligned, match="64 and 32 rows"):
        in_block(both, CHOICES)


def test_without_barriers_every_phase_is_a_launch() -> None:
    found = softmax_and_columns(4096, 256)[2]
    with_barriers, without = at(found), estimate_kernel(found, H200, StitchConfig(grid_barriers=False))
    assert (without.seconds or 0.0) >= 2 * CHOICES.launch_seconds and (without.seconds or 0.0) > (
        with_barriers.seconds or 1.0
    )


def turned(emit: Any, x: Any) -> Any:
    """Rows less their mean, with rows and columns exchanged."""
    return R.permute_dims(emit(R.subtract(x, emit(R.mean(x, -1, True)))), [1, 0])


def test_what_is_written_across_memory_counts_by_sectors() -> None:
    shape = [4096, 4096]
    found = at(graph(build(turned, (shape, "float32"))))
    plain = at(graph(build(lambda emit, x: R.subtract(x, emit(R.mean(x, -1, True))), (shape, "float32"))))
    assert found.uncoalesced and not plain.uncoalesced
    assert found.seconds is not None and plain.seconds is not None
    assert found.seconds > 3 * plain.seconds


def test_what_is_turned_in_shared_memory_does_not() -> None:
    found = at(graph(build(lambda emit, x: R.permute_dims(x, [1, 0]), ([4096, 4096], "float32"))))
    assert not found.uncoalesced


@pytest.mark.parametrize(("shape", "kernels"), [([4096, 4096], 2), ([128, 256], 1)])
def test_large_results_are_turned_by_a_kernel_of_their_own(shape: list[int], kernels: int) -> None:
    """A small one next to statistics stays in the caches, and saves a launch."""
    report = explain(build(turned, (shape, "float32")), {"kind": "cuda", "arch": "sm_90"})
    assert len(report.kernels) == kernels and not report.left
