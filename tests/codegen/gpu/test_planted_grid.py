# SPDX-License-Identifier: Apache-2.0
"""Bugs planted in kernels that the planner made: the emulator catches each, and nothing in them as made."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest

import tvm_stitch.relax
from cuda_emulator import EmulatedRun, Lowered, Options, lower, run_lowered
from stitch_testing.planted import barriers, places, planted
from stitch_testing.random.graphs import emulated_target
from stitch_testing.reference.relax import evaluate, mismatches
from stitch_testing.stitch_graphs import stitch_graph
from tests.graph.helpers import H200
from tvm_stitch.plan.choose import choose_plan
from tvm_stitch.plan.kernel import KernelPlan
from tvm_stitch.testing.workloads import grid_cases
from tvm_stitch.testing.workloads.grid_case import GridCase

#: Grid barriers, in sizes of which several blocks have a part in every phase.
GRID = [
    grid_cases.layer_norm_backward(301, 97),
    grid_cases.layer_norm_backward(1201, 64),
    grid_cases.batch_norm_training(700, 257),
    grid_cases.batch_norm_training(2003, 13),
    grid_cases.cross_entropy(300, 31),
    grid_cases.column_sum(300, 4099),
    grid_cases.clip_adam([(70001,)]),
    grid_cases.figure7(301, 33, 521),
]
CLUSTERS = [
    grid_cases.deviation_sum(301, 257),
    grid_cases.standardize_by_max(301, 257),
    grid_cases.group_norm(2, 12, 4, 3501),
]
_CLUSTER_BARRIER = re.compile(r"\b\w*barrier_cluster_(arrive|wait)\w*\(\);")
_AWAITED = re.compile(r"while \(1\) \{\s*if [^{}]*\{ break; \}[^{}]*try_wait[^{}]*\}")
SEEDS = (0, 1)


@dataclass(frozen=True)
class Made:
    """A case's kernel and plan, inputs, and what it is to return."""

    lowered: Lowered
    plan: KernelPlan
    inputs: list[np.ndarray]
    expected: list[np.ndarray]


_MADE: dict[str, Made] = {}


def made(case: GridCase) -> Made:
    if case.label not in _MADE:
        mod, target = case.build(), emulated_target()
        inputs = case.inputs(np.random.default_rng(3))
        artifact = lower(mod, target, tvm_stitch.relax.pipeline(target))
        _MADE[case.label] = Made(
            artifact, choose_plan(stitch_graph(mod), H200), inputs, evaluate(mod, inputs)
        )
    return _MADE[case.label]


def lowered(case: GridCase) -> Lowered:
    return made(case).lowered


def resident(case: GridCase) -> tuple[int, int]:
    """Blocks of the launch, and of a multiprocessor."""
    plan = made(case).plan
    if plan.grid_wide:
        return plan.shared_grid.blocks, plan.shared_grid.blocks_per_sm
    return int(
        plan.stage.alignment.domain.rows
    ) * plan.stage.mapping.row_splits, plan.stage.mapping.blocks_per_sm


def run(case: GridCase, artifact: Lowered, seed: int, **options: object) -> tuple[EmulatedRun, bool]:
    """Run it, and return whether its outputs are right."""
    this = made(case)
    done = run_lowered(artifact, this.inputs, seed=seed, options=Options(**options))  # type: ignore[arg-type]
    return done, bool(done.outputs) and mismatches(done.outputs, this.expected, case.tolerance) == []


def kinds(done: EmulatedRun) -> set[str]:
    return {report.kind for report in done.reports}


def label(case: GridCase) -> str:
    return case.label


grid_kernels = pytest.mark.parametrize("case", GRID, ids=label)
cluster_kernels = pytest.mark.parametrize("case", CLUSTERS, ids=label)


@pytest.mark.parametrize("case", [*GRID, *CLUSTERS], ids=label)
@pytest.mark.parametrize("seed", SEEDS)
def test_kernels_as_made_are_clean_and_right(case: GridCase, seed: int) -> None:
    done, right = run(case, lowered(case), seed, strict_rewrite=True, resident_blocks=132 * 2)
    assert right and done.reports == []


@grid_kernels
def test_each_grid_barrier_is_needed(case: GridCase) -> None:
    count = barriers(lowered(case))
    assert count > 0
    for index in range(count):
        broken = planted(lowered(case), "grid-barrier", index)
        for seed in SEEDS:
            done, right = run(case, broken, seed)
            assert "race" in kinds(done) and not right, f"barrier {index}, seed {seed}: {done.reports}"
            assert {r.array for r in done.reports if r.kind == "race"} <= scratch_of(case), done.reports


def scratch_of(case: GridCase) -> set[str]:
    """Return the names of buffers that may cross blocks: scratch, and outputs that later phases read."""
    plan = made(case).plan
    return {s.name for s in plan.scratch} | {t.name for t in plan.graph.outputs}


@grid_kernels
def test_one_block_too_many(case: GridCase) -> None:
    """The launch fills the device, so that not one more block fits."""
    blocks, _ = resident(case)
    assert places(lowered(case), "extra-block") == 1
    done, right = run(case, lowered(case), 0, resident_blocks=blocks)
    assert right and done.launches[0].grid[0] == blocks
    done, _ = run(case, planted(lowered(case), "extra-block"), 0, resident_blocks=blocks)
    assert kinds(done) == {"launch"} and not done.outputs


MOST_PAIRS = 8
"""Pairs of buffers of one kernel that are tried: each is compiled."""


@grid_kernels
def test_scratch_shared_by_two_live_values(case: GridCase) -> None:
    """All buffers of a dtype are in use at once in some phase: else the planner would have made one of them.

    A value may be overwritten behind a barrier, after its first readers and before its last. That breaks no rule but
    the plan's, and shows in the results alone.
    """
    sizes = {s.name: math.prod(int(e) for e in s.shape) for s in made(case).plan.scratch}
    pairs = [(a, b) for a in sizes for b in sizes if a != b and sizes[a] >= sizes[b]]
    assert pairs or len(sizes) == 1
    reported = False
    for number, (keep, gone) in enumerate(pairs[:: 1 + len(pairs) // MOST_PAIRS]):
        broken = planted(lowered(case), "shared-scratch", (f"{keep}_ptr", f"{gone}_ptr"))
        seed = SEEDS[number % len(SEEDS)]
        done, right = run(case, broken, seed, strict_rewrite=True)
        assert kinds(done) & {"race", "double-write"} or not right, f"{keep}, {gone}, seed {seed}"
        reported |= bool(done.reports)
    assert reported or not pairs


@pytest.mark.parametrize("case", [GRID[0], GRID[3], GRID[4], GRID[7]], ids=label)
def test_block_barriers(case: GridCase) -> None:
    """Without a barrier that is needed there is a race. Without a barrier that is not, nothing changes."""
    count = barriers(lowered(case), "block-barrier")
    needed = 0
    for index in range(count):
        broken = planted(lowered(case), "block-barrier", index)
        runs = [run(case, broken, seed) for seed in SEEDS]
        caught = [("race" in kinds(done)) for done, _ in runs]
        assert caught[0] == caught[1], (
            f"barrier {index}: one order of threads finds it and the other does not"
        )
        assert caught[0] or all(right and not done.reports for done, right in runs), f"barrier {index}"
        needed += caught[0]
    assert needed > 0


def without_cluster_barrier(artifact: Lowered, index: int) -> Lowered:
    """Arrival and wait number ``index`` removed: between the two may stand work."""
    start = artifact.source.rindex("__global__")
    found = list(_CLUSTER_BARRIER.finditer(artifact.source, start))
    assert [m[1] for m in found] == ["arrive", "wait"] * (len(found) // 2)
    source = artifact.source
    for match in reversed(found[2 * index : 2 * index + 2]):
        source = source[: match.start()] + ";" + source[match.end() :]
    return replace(artifact, source=source)


def cluster_barriers(artifact: Lowered) -> int:
    start = artifact.source.rindex("__global__")
    return len(_CLUSTER_BARRIER.findall(artifact.source, start)) // 2


@cluster_kernels
def test_blocks_of_a_cluster_have_no_barrier_of_their_own(case: GridCase) -> None:
    assert barriers(lowered(case), "block-barrier") == 0


@cluster_kernels
def test_each_cluster_barrier_is_needed(case: GridCase) -> None:
    count = cluster_barriers(lowered(case))
    assert count == 1  # all blocks have made their barriers
    broken = without_cluster_barrier(lowered(case), 0)
    assert cluster_barriers(broken) == 0
    for seed in SEEDS:
        done, right = run(case, broken, seed)
        assert done.reports, f"seed {seed}, right: {right}"


@cluster_kernels
def test_each_wait_for_what_other_blocks_send_is_needed(case: GridCase) -> None:
    artifact = lowered(case)
    start = artifact.source.rindex("__global__")
    found = list(_AWAITED.finditer(artifact.source, start))
    assert found
    for index, match in enumerate(found):
        broken = replace(artifact, source=artifact.source[: match.start()] + artifact.source[match.end() :])
        for seed in SEEDS:
            done, right = run(case, broken, seed)
            assert "race" in kinds(done), f"wait {index}, seed {seed}, right: {right}"


@grid_kernels
def test_a_smaller_device_is_an_error_before_the_launch(case: GridCase) -> None:
    blocks, per_sm = resident(case)
    needed = -(-blocks // per_sm)
    with pytest.raises(RuntimeError, match=f"needs {needed}, more than the device of its arguments has"):
        run(case, lowered(case), 0, multiprocessors=needed - 1)
    done, right = run(case, lowered(case), 0, multiprocessors=needed)
    assert right and not done.reports
