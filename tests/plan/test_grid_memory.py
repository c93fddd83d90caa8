# SPDX-License-Identifier: Apache-2.0
"""Bytes of grid-wide plans: counted by hand for known kernels, and shared memory as the kernels really ask for it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tvm.relax import op as R

import tvm_stitch.relax
from cuda_emulator import run_cuda
from cuda_emulator.lowering import lower
from stitch_testing.random.graphs import emulated_target
from stitch_testing.stitch_graphs import stitch_graph
from tests.graph.helpers import H200, build, grid_plan
from tvm_stitch.plan.kernel import KernelPlan
from tvm_stitch.plan.memory import finished_bytes, stage_traffic, traffic
from tvm_stitch.plan.shared_memory import shared_bytes
from tvm_stitch.relax.pipeline import Recorder
from tvm_stitch.testing.workloads import grid_cases
from tvm_stitch.testing.workloads.grid_case import GridCase


def planned(case: GridCase, barriers: bool = True) -> KernelPlan:
    return grid_plan(stitch_graph(case.build()), H200, barriers)


@pytest.mark.parametrize(
    "case", [c for c in grid_cases.grid_cases("gpu") if len(c.arguments) < 60], ids=lambda c: c.label
)
def test_the_least_is_what_the_case_counts(case: GridCase) -> None:
    moved = traffic(planned(case))
    assert moved.least == case.bytes_least() <= moved.read + moved.written


def test_sums_of_columns() -> None:
    """The data once, partial results there and back, the sums."""
    plan = planned(grid_cases.column_sum(262144, 256))
    (first,), (second,) = plan.phases
    partials = 256 * first.stride * 4
    assert (stage_traffic(plan, first).read, stage_traffic(plan, first).written) == (
        262144 * 256 * 4,
        partials,
    )
    assert (stage_traffic(plan, second).read, stage_traffic(plan, second).written) == (partials, 256 * 4)
    moved = traffic(plan)
    assert (moved.read, moved.written) == (262144 * 256 * 4 + partials, partials + 256 * 4)


def test_an_input_that_two_phases_read_counts_twice() -> None:
    plan = planned(grid_cases.standardize_by_max(1024, 1024), barriers=False)
    moved = traffic(plan)
    size, totals = 1024 * 1024 * 4, sum(finished_bytes(plan, f) for f in range(len(plan.phases)))
    readers = [p for parts in plan.phases for p in parts if stage_traffic(plan, p).read >= size]
    assert len(readers) >= 3
    assert moved.read - totals - len(readers) * size < 1024  # and samples for a shift, at most
    assert totals == sum(int(t.size) * 4 for t in plan.crossing.partials.values())


def test_rows_that_are_gathered_count_alone() -> None:
    """Statistics that start from 32 samples of a column read these, not all the data."""
    plan = planned(grid_cases.batch_norm_training(8192, 256), barriers=False)
    size = 8192 * 256 * 4
    moved = traffic(plan)
    assert 2 * size < int(str(moved.read)) < 2.1 * size


def test_what_blocks_retain_is_read_once() -> None:
    """Batch norm reads its data for the statistics, and again what neither shared memory nor registers held."""
    plan = planned(grid_cases.batch_norm_training(131072, 256))
    kept, size = plan.retention, 131072 * 256 * 4
    assert kept is not None
    loads, again = kept.stages
    assert stage_traffic(plan, loads).read >= size
    held = plan.shared_grid.blocks * kept.tasks * kept.bytes
    assert size - held <= stage_traffic(plan, again).read < 1.001 * (size - held)
    assert 0.25 * size < held < 0.5 * size  # of an H200


@pytest.mark.parametrize(
    "name", ["layer_norm_backward", "batch_norm_training", "cross_entropy", "column_sum"]
)
def test_shared_memory_is_what_the_kernel_takes(name: str) -> None:
    case = next(c for c in grid_cases.grid_cases("test") if c.name == name)
    target, recorder, mod = emulated_target(), Recorder(), case.build()
    pipeline = tvm_stitch.relax.pipeline(target, None, recorder)
    source = lower(mod, target, pipeline).source
    (plan,) = recorder.plans.values()
    assert plan.grid_wide
    arrays = re.findall(r"^\s*__shared__ .*?(float|int) \w+\[(\d+)\];", source, re.M)
    static = sum(4 * int(count) for _, count in arrays)
    done = run_cuda(
        mod, case.inputs(np.random.default_rng(0)), target=target,
        relax_pipeline=tvm_stitch.relax.pipeline(target),
    )  # fmt: skip
    (launch,) = done.launches
    assert static + launch.shared_bytes == shared_bytes(plan) > 0


def test_scratch_is_as_wide_as_what_is_computed_with() -> None:
    """A float16 value that crosses blocks is written and read as float32. Inputs and outputs are float16."""

    def body(emit: Any, x: Any) -> Any:
        total = emit(R.sum(emit(R.exp(x)), 0, True))
        return [R.divide(emit(R.exp(x)), emit(R.exp(total)))]

    rows, columns = 65536, 256
    plan = grid_plan(stitch_graph(build(body, ((rows, columns), "float16"))), H200, barriers=False)
    half = [t for t in plan.scratch_of if t.dtype == "float16"]
    assert half and all(t.size == columns for t in half)
    (last,) = plan.phases[-1]
    assert stage_traffic(plan, last).read == rows * columns * 2 + len(half) * columns * 4
    assert stage_traffic(plan, last).written == rows * columns * 2
    (finish,) = plan.phases[-2]
    assert stage_traffic(plan, finish).written == len(half) * columns * 4
