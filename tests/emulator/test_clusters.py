# SPDX-License-Identifier: Apache-2.0
"""Cluster barriers in two halves: what an arrival releases, what a wait acquires, and what lies between them."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_emulator import EmulatedRun, Options, run_kernel

SEEDS = pytest.mark.parametrize("seed", [0, 1, 2, 3])
ARRIVE = 'asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");'
RELEASE = 'asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");'
RELAXED = 'asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");'
WAIT = 'asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");'
FENCE = 'asm volatile("fence.acq_rel.cluster;" ::: "memory");'
BLOCK = "__syncthreads();"
BOTH = ARRIVE + WAIT
HEAD = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void k(float* out, const float* x) {
  __shared__ float s[64];
  const int t = threadIdx.x, n = blockDim.x, at = blockIdx.x * n + t;
  float* const other = cg::this_cluster().map_shared_rank(s, cg::this_cluster().block_rank() ^ 1);
"""


def run(body: str, seed: int = 0, threads: int = 64) -> EmulatedRun:
    """Run two clusters of two blocks."""
    x = np.arange(4 * threads, dtype=np.float32)
    args = [np.empty_like(x), x]
    source = HEAD + body + "\n}"
    return run_kernel(source, "k", args, 4, threads, cluster=2, written=[0], options=Options(seed=seed))


def kinds(body: str, seed: int = 0, threads: int = 64) -> set[str]:
    done = run(body, seed, threads)
    if not done.reports:
        swapped = np.arange(4 * threads).reshape(2, 2, threads)[:, ::-1]
        np.testing.assert_array_equal(done.outputs[0].reshape(2, 2, threads), swapped)
    return {r.kind for r in done.reports}


PUSH, READ = "other[t] = x[at];", "out[at] = s[t];"


@SEEDS
@pytest.mark.parametrize("arrive", [ARRIVE, RELEASE, FENCE + RELAXED])
def test_a_store_before_the_arrival_is_seen_after_the_wait(arrive: str, seed: int) -> None:
    assert not kinds(f"{BOTH} {PUSH} {arrive} {WAIT} {READ}", seed)


@SEEDS
@pytest.mark.parametrize("arrive", [ARRIVE, RELEASE, FENCE + RELAXED, FENCE + RELEASE])
def test_a_store_between_arrival_and_wait_is_not(arrive: str, seed: int) -> None:
    """The next barrier orders it: the reader is one too early."""
    late = f"{BOTH} {arrive} {PUSH} {WAIT}"
    assert kinds(f"{late} {READ} {BOTH}", seed) == {"race"}
    assert not kinds(f"{late} {BOTH} {READ}", seed)


@SEEDS
def test_a_relaxed_arrival_orders_what_is_before_a_fence_only(seed: int) -> None:
    assert kinds(f"{BOTH} {PUSH} {RELAXED} {WAIT} {READ} {BOTH}", seed) == {"race"}
    assert kinds(f"{BOTH} {FENCE} {PUSH} {RELAXED} {WAIT} {READ} {BOTH}", seed) == {"race"}
    # Fences of less than the cluster, or of other kinds, do not release to it.
    for fence in ("__threadfence_block();", *(f'asm volatile("{f};");' for f in (
        "fence.acq_rel.cta", "membar.cta", "fence.proxy.async", "fence.mbarrier_init.release.cluster",
        "fence.acquire.sync_restrict::shared::cluster.cluster",
    ))):  # fmt: skip
        assert kinds(f"{BOTH} {PUSH} {fence} {RELAXED} {WAIT} {READ} {BOTH}", seed) == {"race"}, fence
    for fence in ("__threadfence();", "__threadfence_system();", *(f'asm volatile("{f};");' for f in (
        "fence.sc.cluster", "fence.release.gpu", "fence.cluster", "fence.cluster.acq_rel", "membar.gl",
    ))):  # fmt: skip
        assert not kinds(f"{BOTH} {PUSH} {fence} {RELAXED} {WAIT} {READ}", seed), fence


@SEEDS
def test_a_release_makes_up_for_relaxed_arrivals_before_it(seed: int) -> None:
    assert not kinds(f"{BOTH} {PUSH} {RELAXED} {WAIT} {ARRIVE} {WAIT} {READ}", seed)
    assert kinds(f"{BOTH} {PUSH} {RELAXED} {WAIT} {RELAXED} {WAIT} {READ} {BOTH}", seed) == {"race"}


@SEEDS
def test_reads_are_ordered_before_later_stores_in_the_same_way(seed: int) -> None:
    """The other block reads here, then this one writes anew."""
    start = f"s[t] = x[at]; {BOTH}"
    read, write = "out[at] = other[t];", "s[t] = 0.0f;"
    assert not kinds(f"{start} {read} {ARRIVE} {WAIT} {write}", seed)
    assert kinds(f"{start} {ARRIVE} {read} {WAIT} {write} {BOTH}", seed) == {"race"}
    assert kinds(f"{start} {read} {RELAXED} {WAIT} {write} {BOTH}", seed) == {"race"}
    # Read in both halves: what was read first must not hide what was read later.
    twice = f"{start} {read} {ARRIVE} float v = other[t]; {WAIT} {write} out[at] += 0.0f * v; {BOTH}"
    assert kinds(twice, seed) == {"race"}


@SEEDS
def test_threads_of_one_block_are_not_ordered_by_less(seed: int) -> None:
    """A cluster barrier replaces a block barrier only if it releases."""
    swap = "out[at] = s[t ^ 32];"

    def found(body: str) -> set[str]:
        return {r.kind for r in run(f"{body} {BOTH}", seed).reports} - {"uninitialized-read"}

    assert not found(f"s[t] = x[at]; {ARRIVE} {WAIT} {swap}")
    assert found(f"s[t] = x[at]; {RELAXED} {WAIT} {swap}") == {"race"}
    assert found(f"{ARRIVE} s[t] = x[at]; {WAIT} {swap}") == {"race"}
    assert not found(f"{ARRIVE} s[t] = x[at]; {BLOCK} {swap} {WAIT}")
    assert not found(f"s[t] = x[at]; {RELAXED} {BLOCK} {WAIT} {swap}")


@SEEDS
def test_a_thread_releases_what_its_block_and_warp_told_it(seed: int) -> None:
    """Some threads store after their own arrival. Others, which arrive later, have met them in between."""
    early = f"if (t < 32) {{ {ARRIVE} other[t] = x[at]; other[t + 32] = x[at + 32]; }}"
    block = f"{BOTH} {early} @ if (t >= 32) {{ {ARRIVE} }} {WAIT} {READ}"
    assert not kinds(block.replace("@", BLOCK), seed)
    assert kinds(block.replace("@", ""), seed) == {"race"}
    warp = block.replace("t < 32", "t < 16").replace("t >= 32", "t >= 16").replace("t + 32", "t + 16")
    warp = warp.replace("at + 32", "at + 16").replace(".aligned", "")
    assert not kinds(warp.replace("@", "__syncwarp();"), seed, threads=32)
    # A shuffle is no memory barrier.
    shuffle = "__shfl_sync(0xffffffffu, 0, 0);"
    assert kinds(warp.replace("@", shuffle), seed, threads=32) == {"race"}


@SEEDS
def test_a_thread_acquires_what_its_block_and_warp_acquired(seed: int) -> None:
    start = f"{BOTH} {PUSH} {ARRIVE} if (t < 32) {{ {WAIT} }} @ {READ} if (t >= 32) {{ {WAIT} }}"
    assert not kinds(start.replace("@", BLOCK), seed)
    assert kinds(start.replace("@", ""), seed) >= {"race"}
    # Lanes that go on once others have waited, but were told nothing by them.
    lanes = start.replace("t < 32", "t < 16").replace("t >= 32", "t >= 16").replace(".aligned", "")
    assert not kinds(lanes.replace("@", "__syncwarp();"), seed, threads=32)
    shuffle = "__shfl_sync(0xffffffffu, 0, 0);"
    assert kinds(lanes.replace("@", shuffle), seed, threads=32) == {"race"}


@SEEDS
def test_block_and_grid_barriers_may_stand_between_the_halves(seed: int) -> None:
    body = f"{BOTH} {PUSH} {ARRIVE} @ {WAIT} {READ}"
    assert not kinds(body.replace("@", BLOCK), seed)
    # Half of the threads go through the wait first, which must not need the other half at it.
    mixed = f"{BOTH} {PUSH} {ARRIVE} if (t < 32) {{ {WAIT} }} {BLOCK} if (t >= 32) {{ {WAIT} }} {READ}"
    assert not kinds(mixed, seed)
    x = np.arange(256, dtype=np.float32)
    source = HEAD + body.replace("@", "cg::this_grid().sync();") + "}"
    done = run_kernel(
        source, "k", [np.empty_like(x), x], 4, 64, cluster=2, cooperative=True, written=[0],
        options=Options(seed=seed),
    )  # fmt: skip
    assert not done.reports


@SEEDS
def test_a_block_does_not_end_under_an_access_of_its_memory(seed: int) -> None:
    start = f"s[t] = x[at]; {BOTH}"
    read = "out[at] = other[t];"
    assert not kinds(f"{start} {read} {ARRIVE} {WAIT}", seed)
    for end in (f"{read}", f"{ARRIVE} {read} {WAIT}", f"{read} {RELAXED} {WAIT}"):
        found = run(f"{start} {end}", seed).reports
        assert found and {r.kind for r in found} == {"race"}, end
        assert all("end" in r.message for r in found), end
    # One warp of the visitors is late.
    late = f"{start} if (t < 32) {{ {read} }} {ARRIVE} if (t >= 32) {{ {read} }} {WAIT}"
    assert {r.kind for r in run(late, seed).reports} == {"race"}


@SEEDS
@pytest.mark.parametrize("relaxed", [0, 1])
def test_what_both_blocks_read_is_released_only_if_both_release(relaxed: int, seed: int) -> None:
    body = (
        "const unsigned rank = cg::this_cluster().block_rank(); float* cell = (float*)x + blockIdx.x / 2;"
        f"float v = cell[0]; if (rank == @) {{ {RELAXED} }} else {{ {ARRIVE} }} {WAIT}"
        f"if (rank == {1 - relaxed} && t == 0) cell[0] = v; out[at] = v; {BOTH}"
    )
    assert {r.kind for r in run(body.replace("@", str(relaxed)), seed).reports} == {"race"}
    assert not run(body.replace("@", "7"), seed).reports


@SEEDS
def test_the_owner_has_begun_for_those_only_who_have_waited(seed: int) -> None:
    early = run(f"{ARRIVE} {PUSH} {WAIT} {BOTH} {READ}", seed).reports
    assert early and any("may not have begun" in r.message for r in early)
    assert not kinds(f"{RELAXED} {WAIT} {PUSH} {BOTH} {READ}", seed)


def test_halves_come_in_turns() -> None:
    assert "divergent-barrier" in kinds(f"{ARRIVE} {ARRIVE} {WAIT} {READ}")
    found = run(f"out[at] = 0; {WAIT}").reports
    assert {r.kind for r in found} == {"divergent-barrier"} and "without an arrive" in found[0].message


def test_cooperative_groups_have_the_halves_too() -> None:
    arrive, wait = "cg::this_cluster().barrier_arrive();", "cg::this_cluster().barrier_wait();"
    assert not kinds(f"{arrive} {wait} {PUSH} {arrive} {wait} {READ}")
    assert kinds(f"{arrive} {wait} {arrive} {PUSH} {wait} {READ} {BOTH}") == {"race"}


# -- random programs, judged by vector clocks ----------------------------------------------------------------------
BLOCKS, THREADS, STEPS, CELLS = 2, 34, 12, 24
TOTAL = BLOCKS * THREADS
NOTHING, LOAD, STORE, RELEASED, UNORDERED, FENCED, WAITED, MET = range(8)
SLOTS = 8  # of a step: block barrier, access, fence, access, arrival, access, wait, access

PROGRAM = f"""
extern "C" __global__ void program(float* out, float* cells, const int* op, const int* cell) {{
  const int me = blockIdx.x * {THREADS} + threadIdx.x;
  float v = 0.0f;
  for (int i = me; i < {STEPS * SLOTS * TOTAL}; i += {TOTAL}) {{
    switch (op[i]) {{
      case {LOAD}: v += cells[cell[i]]; break;
      case {STORE}: cells[cell[i]] = v; break;
      case {RELEASED}: asm volatile("barrier.cluster.arrive.release;" ::: "memory"); break;
      case {UNORDERED}: asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); break;
      case {FENCED}: asm volatile("fence.acq_rel.cluster;" ::: "memory"); break;
      case {WAITED}: asm volatile("barrier.cluster.wait;" ::: "memory"); break;
      case {MET}: __syncthreads(); break;
    }}
  }}
  out[me] = v;
}}
"""


def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw two cluster barriers: arrivals in three steps of six, waits in three, with block barriers and accesses."""
    op = np.zeros((STEPS, SLOTS, TOTAL), np.int32)
    for block in range(BLOCKS):
        met = rng.random(STEPS) < 0.2
        op[met, 0, block * THREADS : (block + 1) * THREADS] = MET
    relaxed = np.repeat(rng.choice([0.0, 0.3], BLOCKS), THREADS)  # maybe of one block only
    fenced = rng.random() < 0.5
    for barrier in range(2):
        together = rng.random() < 0.5  # all arrive, and wait, in one step
        arrive = 6 * barrier + rng.integers(0, 1 if together else 3, TOTAL)
        wait = 6 * barrier + 2 + rng.integers(0, 1 if together else 4, TOTAL)
        every = np.arange(TOTAL)
        op[arrive, 4, every] = np.where(rng.random(TOTAL) < relaxed, UNORDERED, RELEASED)
        op[wait, 6, every] = WAITED
        if fenced:
            op[6 * barrier + rng.integers(0, 6), 2, :] = FENCED
    access = rng.random((STEPS, 4, TOTAL)) < rng.choice([0.002, 0.01])
    kinds = np.where(rng.random(access.shape) < 0.3, STORE, LOAD)
    op[:, 1::2] = np.where(access, kinds, NOTHING)
    return op, rng.integers(0, CELLS, op.shape).astype(np.int32)


def races(op: np.ndarray, cell: np.ndarray) -> bool:
    """Return whether two accesses of one cell, one of them a store, are ordered by nothing."""
    clock = np.zeros((TOTAL, TOTAL), int)  # what a thread (row) knows of each other's number of events
    fence = np.zeros_like(clock)
    released = [np.zeros(TOTAL, int)] * 2
    arrived, waited = np.zeros(TOTAL, int), np.zeros(TOTAL, int)
    accesses: list[tuple[int, bool, int, int, np.ndarray]] = []
    for step in range(STEPS):
        for slot in range(SLOTS):
            now = op[step, slot]
            for block in range(BLOCKS):
                rows = slice(block * THREADS, (block + 1) * THREADS)
                if now[rows][0] == MET:
                    clock[rows] = clock[rows].max(0)
            for me in np.flatnonzero(now):
                if now[me] in (LOAD, STORE):
                    clock[me, me] += 1
                    at = int(cell[step, slot, me])
                    accesses.append((at, now[me] == STORE, me, clock[me, me], clock[me].copy()))
                elif now[me] == FENCED:
                    fence[me] = clock[me]
                elif now[me] in (RELEASED, UNORDERED):
                    known = clock[me] if now[me] == RELEASED else fence[me]
                    released[arrived[me]] = np.maximum(released[arrived[me]], known)
                    arrived[me] += 1
                elif now[me] == WAITED:
                    clock[me] = np.maximum(clock[me], released[waited[me]])
                    waited[me] += 1
    for i, (at, stores, who, count, _) in enumerate(accesses):
        for later_at, later_stores, later_who, _, knows in accesses[i + 1 :]:
            if at == later_at and (stores or later_stores) and who != later_who and knows[who] < count:
                return True
    return False


def test_a_race_is_reported_exactly_where_nothing_orders_two_accesses() -> None:
    verdicts = []
    for number in range(200):
        op, cell = draw(np.random.default_rng(number))
        expected = races(op, cell)
        args = [np.empty(TOTAL, np.float32), np.zeros(CELLS, np.float32), op.ravel(), cell.ravel()]
        for seed in (0, number + 1):
            done = run_kernel(
                PROGRAM, "program", args, BLOCKS, THREADS, cluster=BLOCKS, written=[0], inout=[1],
                options=Options(seed=seed),
            )  # fmt: skip
            assert {r.kind for r in done.reports} == ({"race"} if expected else set()), (number, seed)
        verdicts.append(expected)
    assert 60 <= sum(verdicts) <= 140  # both kinds are well represented
