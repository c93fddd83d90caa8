# SPDX-License-Identifier: Apache-2.0
"""The workloads with reductions across rows: one launch each, right in the emulator, within a wave at full size."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import tvm_stitch
from cuda_emulator import Lowered, lower, run_lowered
from stitch_testing import resources
from stitch_testing.random.graphs import emulated_target
from stitch_testing.reference.relax import evaluate, mismatches
from stitch_testing.stitch_graphs import stitch_graph
from tests.graph.helpers import H200
from tvm_stitch.plan.choose import choose_plan
from tvm_stitch.plan.gpu.occupancy import blocks_per_sm
from tvm_stitch.plan.shared_memory import shared_bytes
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING
from tvm_stitch.testing.workloads import grid_cases
from tvm_stitch.testing.workloads.grid_case import GridCase

needs_nvcc = pytest.mark.skipif(not resources.has_compiler(), reason="needs nvcc")

GPU = grid_cases.grid_cases("gpu")

#: Several blocks work in all phases. No extent is a multiple of a vector, a warp or a block.
AWKWARD = [
    grid_cases.layer_norm_backward(301, 97),
    grid_cases.layer_norm_backward(1, 97),
    grid_cases.layer_norm_backward(530, 1),
    grid_cases.layer_norm_backward(40, 5003),
    grid_cases.layer_norm_backward(1201, 64),
    grid_cases.layer_norm_backward(263, 768),
    grid_cases.batch_norm_training(1009, 1),
    grid_cases.batch_norm_training(1, 37),
    grid_cases.batch_norm_training(700, 257),
    grid_cases.batch_norm_training(2003, 13),
    grid_cases.batch_norm_training(150, 4099),
    grid_cases.batch_norm_training_nchw(2, 3, 1, 1),
    grid_cases.batch_norm_training_nchw(5, 7, 11, 13),
    grid_cases.batch_norm_training_nchw(3, 2, 64, 65),
    grid_cases.batch_norm_training_nchw(9, 137, 5, 5),
    grid_cases.cross_entropy(300, 31),
    grid_cases.cross_entropy(1, 1009),
    grid_cases.cross_entropy(2, 3001),
    grid_cases.cross_entropy(140, 3001),
    grid_cases.cross_entropy(1009, 1),
    grid_cases.cross_entropy(97, 4001),
    grid_cases.row_sum(1, 1),
    grid_cases.row_sum(1, 50021),
    grid_cases.row_sum(5003, 32),
    grid_cases.row_sum(137, 997),
    grid_cases.column_sum(1, 997),
    grid_cases.column_sum(997, 1),
    grid_cases.column_sum(4001, 31),
    grid_cases.column_sum(300, 4099),
    grid_cases.column_sum(1009, 509),
    grid_cases.column_sum(50000, 3),
    grid_cases.clip_adam([(70001,)]),
    grid_cases.clip_adam([(1,)]),
    grid_cases.clip_adam([(300, 41), (1,), (257,), (5, 3, 7), (64,), (20000,)]),
    grid_cases.deviation_sum(301, 257),
    grid_cases.deviation_sum(1, 70001),
    grid_cases.deviation_sum(70001, 1),
    grid_cases.standardize_by_max(301, 257),
    grid_cases.standardize_by_max(1, 70001),
    grid_cases.standardize_by_max(1009, 67),
    grid_cases.figure7(301, 33, 521),
    grid_cases.figure7(1009, 1, 700),
    grid_cases.figure7(1, 77, 600),
    grid_cases.figure7(300, 5003, 3),
    grid_cases.figure7(600, 31, 4001),
    grid_cases.group_norm(2, 12, 4, 3501),
    grid_cases.group_norm(1, 2, 1, 30011),
    grid_cases.group_norm(3, 4, 2, 1),
]


def label(case: GridCase) -> str:
    return case.label


@functools.cache
def lowered(name: str) -> Lowered:
    """Return a case at full size, by its label."""
    (case,) = (case for case in GPU if case.label == name)
    target = emulated_target()
    return lower(case.build(), target, tvm_stitch.relax.pipeline(target), LOWERING)


@pytest.mark.parametrize("case", [*grid_cases.grid_cases("test"), *AWKWARD], ids=label)
def test_one_launch_and_right(case: GridCase) -> None:
    mod, target = case.build(), emulated_target()
    artifact = lower(mod, target, tvm_stitch.relax.pipeline(target), LOWERING)
    inputs = case.inputs(np.random.default_rng(11))
    expected = evaluate(mod, inputs)
    for seed in (0, 1):
        run = run_lowered(artifact, inputs, seed=seed).check()
        assert len(run.launches) == 1, [launch.name for launch in run.launches]
        assert mismatches(run.outputs, expected, case.tolerance) == []
        assert [(out.shape, str(out.dtype)) for out in run.outputs] == [
            (spec.shape, spec.dtype) for spec in case.results
        ]


@pytest.mark.parametrize("case", GPU, ids=label)
def test_one_kernel_at_full_size(case: GridCase) -> None:
    assert len(lowered(case.label).kernels) == 1


@needs_nvcc
@pytest.mark.parametrize("case", GPU, ids=label)
def test_resources_at_full_size(case: GridCase) -> None:
    """There are no spills. If blocks wait for each other, all of them are resident with the registers they got."""
    artifact = lowered(case.label)
    ((_, params),) = artifact.kernels.items()
    (used,) = resources.kernel_resources(artifact.source).values()
    assert used.spilled == used.stack == 0
    plan = choose_plan(stitch_graph(case.build()), H200)
    barriers, shared = plan.cooperative, shared_bytes(plan) if plan.grid_wide else 0
    if plan.grid_wide:
        blocks, threads = plan.shared_grid.blocks, plan.shared_grid.threads
    else:
        m = plan.stage.mapping
        blocks, threads = int(plan.stage.alignment.domain.rows) * m.row_splits if barriers else 0, m.block
    assert ("tirx.use_cooperative_launch" in params) == barriers
    if barriers:
        assert blocks <= H200.sms * blocks_per_sm(H200, threads, used.registers, max(used.shared, shared))
        assert blocks > 0.9 * H200.sms  # and hardly any of the device is idle
