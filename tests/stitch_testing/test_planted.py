# SPDX-License-Identifier: Apache-2.0
"""Planted bugs: each is found where it is claimed to be, changes one thing, and is caught by the emulator."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_emulator import (
    EmulatedRun,
    Launch,
    Lowered,
    Options,
    default_target,
    lower,
    run_kernel,
    run_lowered,
)
from stitch_testing.barrier_kernels import chained_reductions, chained_reductions_reference
from stitch_testing.planted import BUGS, Bug, barriers, places, planted, scratch_pairs

SEEDS = [0, 1, 2, 3]
BLOCKS, THREADS, ELEMENTS = 4, 64, 1000
X = np.random.default_rng(0).standard_normal(ELEMENTS).astype("float32") + np.float32(3)

#: Row sums of pairs of rows in clusters of two blocks: each row is split, the halves meet in shared memory.
SPLIT_ROWS = """
#include <cooperative_groups.h>
__forceinline__ __device__ void sync_cluster() {
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
extern "C" __global__ void __launch_bounds__(32) rows(float* __restrict__ out, const float* __restrict__ x) {
  __shared__ float part[32];
  __shared__ float own[1];
  part[threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
  __syncthreads(); // { a brace that closes nowhere
  if (threadIdx.x < 16) part[threadIdx.x] += part[threadIdx.x + 16];
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0.0f;
    for (int i = 0; i < 16; ++i) sum += part[i];
    own[0] = sum;
  }
  sync_cluster();
  namespace cg = cooperative_groups;
  float other = *cg::this_cluster().map_shared_rank(own, cg::this_cluster().block_rank() ^ 1);
  sync_cluster();
  out[blockIdx.x * 32 + threadIdx.x] = own[0] + other;
}
"""


@pytest.fixture(scope="module")
def reductions() -> Lowered:
    return lower(chained_reductions(BLOCKS, THREADS, ELEMENTS), default_target())


def kinds(run: EmulatedRun) -> set[str]:
    return {report.kind for report in run.reports}


def rows(source: str, seed: int) -> EmulatedRun:
    x = np.arange(128, dtype=np.float32)
    args = [np.empty(128, np.float32), x]
    return run_kernel(source, "rows", args, 4, 32, cluster=2, written=[0], options=Options(seed=seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_kernels_without_a_planted_bug_are_clean_and_right(reductions: Lowered, seed: int) -> None:
    options = Options(resident_blocks=BLOCKS)
    run = run_lowered(reductions, [X], seed=seed, options=options).check()
    np.testing.assert_allclose(run.outputs[0], chained_reductions_reference(X), rtol=2e-5, atol=2e-5)
    sums = np.arange(128).reshape(2, 64).sum(1).repeat(64)
    np.testing.assert_array_equal(rows(SPLIT_ROWS, seed).check().outputs[0], sums)


def test_places(reductions: Lowered) -> None:
    assert barriers(reductions) == barriers(reductions.source) == 2
    assert barriers(reductions, "cluster-barrier") == 0
    assert scratch_pairs(reductions) == [("squares_ptr", "sums_ptr"), ("sums_ptr", "squares_ptr")]
    assert {bug: places(SPLIT_ROWS, bug) for bug in BUGS} == {
        "grid-barrier": 0,
        "cluster-barrier": 2,
        "block-barrier": 2,
        "shared-scratch": 0,
        "extra-block": 0,
    }
    assert places(reductions, "extra-block") == 1 and places(SPLIT_ROWS, "block-barrier", "other") == 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("index", [0, 1])
def test_a_missing_grid_barrier_is_caught(reductions: Lowered, index: int, seed: int) -> None:
    broken = planted(reductions, "grid-barrier", index)
    assert barriers(broken) == 1 and barriers(reductions) == 2
    run = run_lowered(broken, [X], seed=seed)
    assert "race" in kinds(run) and kinds(run) <= {"race", "uninitialized-read"}
    scratch = ("sums", "squares")[index]
    assert {report.array for report in run.reports} >= {scratch}


@pytest.mark.parametrize("seed", SEEDS)
def test_scratch_shared_by_two_live_buffers_is_caught(reductions: Lowered, seed: int) -> None:
    for index in (0, 1, ("sums_ptr", "squares_ptr")):
        run = run_lowered(planted(reductions, "shared-scratch", index), [X], seed=seed)
        assert "race" in kinds(run), run.reports


def test_scratch_may_be_shared_once_its_first_value_is_dead() -> None:
    source = """
#include <cooperative_groups.h>
extern "C" __global__ void k(float* out, float* a, float* b, const float* x) {
  namespace cg = cooperative_groups;
  int t = threadIdx.x, i = blockIdx.x * 32 + t, j = (i + 32) % 64;
  *(float*)(a + i) = x[i];
  cg::this_grid().sync();
  float v = a[j];
  @
  b[i] = v;
  cg::this_grid().sync();
  out[i] = *(float*)(b + (j));
}
"""
    args = [np.empty(64, np.float32), np.empty(64, np.float32), np.empty(64, np.float32)]
    args.append(np.arange(64, dtype=np.float32))
    for between, caught in (("cg::this_grid().sync();", False), ("", True)):
        shared = planted(source.replace("@", between), "shared-scratch", ("a", "b"))
        run = run_kernel(shared, "k", args, 2, 32, cooperative=True, written=[0], scratch=[1, 2])
        assert kinds(run) == ({"race"} if caught else set())


def test_scratch_shared_within_a_phase_is_caught_where_the_same_thread_writes_both() -> None:
    source = """
#include <cooperative_groups.h>
extern "C" __global__ void k(float* out, float* a, float* b, const float* x) {
  int i = blockIdx.x * 32 + threadIdx.x, j = (i + 32) % 64;
  a[i] = x[i];
  b[i] = 2.0f * x[i];
  cooperative_groups::this_grid().sync();
  out[i] = a[j] + b[j];
}
"""
    x = np.arange(64, dtype=np.float32)
    args = [np.empty_like(x), np.empty_like(x), np.empty_like(x), x]
    options = Options(strict_rewrite=True)
    for text, found in ((source, set()), (planted(source, "shared-scratch"), {"double-write"})):
        run = run_kernel(
            text, "k", args, 2, 32, cooperative=True, written=[0], scratch=[1, 2], options=options
        )
        assert kinds(run) == found


def test_one_block_too_many_is_caught(reductions: Lowered) -> None:
    broken = planted(reductions, "extra-block")
    run = run_lowered(broken, [X], options=Options(resident_blocks=BLOCKS))
    assert kinds(run) == {"launch"} and not run.outputs
    assert run.launches[0].grid == (BLOCKS + 1, 1, 1)
    launch = Launch("k", (6, 2, 1), (32, 1, 1), cluster=(2, 1, 1), cooperative=True)
    assert planted(launch, "extra-block").grid == (8, 2, 1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("index", [0, 1])
def test_a_missing_cluster_barrier_is_caught(index: int, seed: int) -> None:
    broken = planted(SPLIT_ROWS, "cluster-barrier", index)
    assert barriers(broken, "cluster-barrier") == 1
    assert "race" in kinds(rows(broken, seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_missing_block_barrier_is_caught(reductions: Lowered, seed: int) -> None:
    assert "race" in kinds(rows(planted(SPLIT_ROWS, "block-barrier", 0), seed))
    # Thread 0 reads what its own warp wrote: the second barrier orders lanes.
    assert "race" in kinds(rows(planted(SPLIT_ROWS, "block-barrier", 1), seed))
    # The first barrier of the tree, then the one between its levels.
    for index in (0, 1):
        broken = planted(reductions, "block-barrier", index)
        assert barriers(broken, "block-barrier") == barriers(reductions, "block-barrier") - 1
        assert "race" in kinds(run_lowered(broken, [X], seed=seed))


def test_only_the_named_kernel_is_changed() -> None:
    second = SPLIT_ROWS[SPLIT_ROWS.index("extern") :].replace("rows(", "more(")
    both = SPLIT_ROWS + second
    assert barriers(both, "block-barrier") == 4 and barriers(both, "block-barrier", "more") == 2
    changed = planted(both, "block-barrier", 0, kernel="more")
    assert changed.startswith(SPLIT_ROWS) and barriers(changed, "block-barrier") == 3


@pytest.mark.parametrize(
    "bug, index, match",
    [
        ("grid-barrier", 0, "0 places"),
        ("cluster-barrier", 2, "2 places"),
        ("block-barrier", -1, "2 places"),
        ("shared-scratch", ("out", "x"), "no kernel has two writable pointers"),
        ("extra-block", 0, "0 places"),
        ("barrier", 0, "none of the bugs"),
    ],
)
def test_what_cannot_be_planted_is_an_error(bug: Bug, index: object, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        planted(SPLIT_ROWS, bug, index)  # type: ignore[call-overload]
