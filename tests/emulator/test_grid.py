# SPDX-License-Identifier: Apache-2.0
"""Properties of whole grids and clusters: grid barriers and scratch, limits of residency, remote shared memory."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from cuda_emulator import EmulatedRun, Options, run_kernel

BLOCKS, THREADS, PHASES, CELLS = 3, 40, 4, 48
TOTAL = BLOCKS * THREADS
HEAD = "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n"

# Every thread touches one cell a phase: op 1 reads it, 2 writes it. A barrier follows a phase where `sync` says so.
TABLE_KERNEL = (
    HEAD
    + f"""
extern "C" __global__ void table(float* out, float* cells, const int* op, const int* cell, const int* sync) {{
  int me = blockIdx.x * {THREADS} + threadIdx.x;
  float v = 0.0f;
  for (int phase = 0; phase < {PHASES}; ++phase) {{
    int at = cell[phase * {TOTAL} + me];
    if (op[phase * {TOTAL} + me] == 1) v += cells[at];
    if (op[phase * {TOTAL} + me] == 2) cells[at] = v;
    if (sync[phase]) cg::this_grid().sync();
  }}
  out[me] = v;
}}
"""
)


def conflicts(op: np.ndarray, cell: np.ndarray, sync: np.ndarray) -> bool:
    """Return whether two threads touch one cell between the same two barriers, and one of them writes."""
    readers: dict[int, set[int]] = {}
    writers: dict[int, set[int]] = {}
    for phase in range(PHASES):
        for me in range(TOTAL):
            if op[phase, me]:
                (readers if op[phase, me] == 1 else writers).setdefault(int(cell[phase, me]), set()).add(me)
        if sync[phase] or phase == PHASES - 1:
            for at, wrote in writers.items():
                if len(wrote | readers.get(at, set())) > 1:
                    return True
            readers, writers = {}, {}
    return False


def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Accesses that are free of conflicts within a phase, dense enough that merged phases mostly have one."""
    op, cell = np.zeros((PHASES, TOTAL), np.int32), np.zeros((PHASES, TOTAL), np.int32)
    for phase in range(PHASES):
        cells = rng.permutation(CELLS)
        owned = int(rng.integers(1, 6))  # cells written in this phase, each by one thread
        writers = rng.permutation(TOTAL)[:owned]
        readers = rng.random(TOTAL) < rng.choice([0.02, 0.1, 0.5])
        op[phase, readers] = 1
        cell[phase] = cells[owned + rng.integers(0, CELLS - owned, TOTAL)]
        op[phase, writers] = 2
        cell[phase, writers] = cells[:owned]
    return op, cell


def test_a_race_is_reported_exactly_where_no_grid_barrier_orders_two_accesses() -> None:
    verdicts = []
    for number in range(40):
        rng = np.random.default_rng(number)
        op, cell = draw(rng)
        for sync in (np.ones(PHASES, np.int32), (rng.random(PHASES) < 0.6).astype(np.int32)):
            expected = conflicts(op, cell, sync)
            args = [
                np.empty(TOTAL, np.float32),
                np.zeros(CELLS, np.float32),
                op.ravel(),
                cell.ravel(),
                sync,
            ]
            for seed in (0, 1, 2):
                run = run_kernel(
                    TABLE_KERNEL,
                    "table",
                    args,
                    BLOCKS,
                    THREADS,
                    cooperative=True,
                    written=[0],
                    inout=[1],
                    options=Options(seed=seed),
                )
                assert {r.kind for r in run.reports} == ({"race"} if expected else set()), (
                    number,
                    sync,
                    seed,
                )
            verdicts.append(expected)
    assert 20 <= sum(verdicts) <= 60  # both kinds are well represented


# Scratch written in one phase, read by another block in the next, rewritten in the third, read again in the last.
REWRITE = (
    HEAD
    + """
extern "C" __global__ void rewrite(float* out, float* s, const float* x) {
  int b = blockIdx.x, t = threadIdx.x, n = blockDim.x, next = (b + 1) % gridDim.x * n + t;
  s[b * n + t] = x[b * n + t];
  @0
  float v = s[next];
  @1
  s[b * n + t] = 2.0f * v;
  @2
  out[b * n + t] = s[next];
}
"""
)


@pytest.mark.parametrize("missing", [None, 0, 1, 2])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_scratch_rewritten_in_a_later_phase(missing: int | None, seed: int) -> None:
    source = REWRITE
    for number in range(3):
        source = source.replace(f"@{number}", "" if number == missing else "cg::this_grid().sync();")
    x = np.arange(4 * 64, dtype=np.float32)
    args = [np.empty_like(x), np.empty_like(x), x]
    run = run_kernel(
        source,
        "rewrite",
        args,
        4,
        64,
        cooperative=True,
        written=[0],
        scratch=[1],
        options=Options(seed=seed),
    )
    found = {r.kind for r in run.reports}
    if missing is None:
        assert not found
        np.testing.assert_array_equal(run.outputs[0], 2 * np.roll(x, -128))
    else:
        # Without the first barrier some block also reads what nobody wrote, whatever the order.
        assert "race" in found and found <= {"race", "uninitialized-read"}
        assert {r.array for r in run.reports} <= {"s"}


def test_a_grid_of_132_blocks_of_512_threads_is_resident_at_once() -> None:
    source = (
        HEAD
        + """
extern "C" __global__ void __launch_bounds__(512) total(float* out, float* part, const float* x, int n) {
  __shared__ float warp[16];
  float v = 0.0f;
  for (int i = blockIdx.x * 512 + threadIdx.x; i < n; i += gridDim.x * 512) v += x[i];
  for (int o = 16; o; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o, 32);
  if (threadIdx.x % 32 == 0) warp[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x == 0) {
    float s = 0.0f;
    for (int i = 0; i < 16; ++i) s += warp[i];
    part[blockIdx.x] = s;
  }
  cg::this_grid().sync();
  float s = 0.0f;
  for (int i = 0; i < gridDim.x; ++i) s += part[i];
  for (int i = blockIdx.x * 512 + threadIdx.x; i < n; i += gridDim.x * 512) out[i] = x[i] / s;
}
"""
    )
    n = 100_000
    x = np.random.default_rng(0).random(n, dtype=np.float32)
    args = [np.empty(n, np.float32), np.empty(132, np.float32), x, n]
    run = run_kernel(source, "total", args, 132, 512, cooperative=True, written=[0], scratch=[1]).check()
    np.testing.assert_allclose(run.outputs[0], x / x.sum(dtype=np.float64), rtol=1e-5)


def barrier_only(grid: int, cooperative: bool = True, **options: object) -> EmulatedRun:
    body = "cg::this_grid().sync();" if cooperative else ""
    source = HEAD + f'extern "C" __global__ void k(float* out) {{ {body} out[blockIdx.x] = 1.0f; }}'
    args = [np.empty(grid, np.float32)]
    return run_kernel(
        source,
        "k",
        args,
        grid,
        1,
        cooperative=cooperative,
        written=[0],
        options=Options(**options),  # type: ignore[arg-type]
    )


def test_a_cooperative_launch_that_does_not_fit_is_refused() -> None:
    assert not barrier_only(8, resident_blocks=8).reports
    (report,) = barrier_only(9, resident_blocks=8).reports
    assert (report.kind, report.kernel) == ("launch", "k") and "9 blocks" in report.message
    # Blocks that wait for nobody may come one after the other.
    assert not barrier_only(9, cooperative=False, resident_blocks=8).reports
    # The limit may depend on the launch: here by its threads.
    assert barrier_only(9, resident_blocks=lambda launch: 8 * launch.block[0]).reports


REMOTE = (
    HEAD
    + """
extern "C" __global__ void k(float* out, const float* x) {
  __shared__ float s[32];
  s[threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
  @0
  float v = cg::this_cluster().map_shared_rank(s, cg::this_cluster().block_rank() ^ 1)[31 - threadIdx.x];
  @1
  out[blockIdx.x * 32 + threadIdx.x] = v;
}
"""
)


def remote(missing: int | None, seed: int) -> EmulatedRun:
    source = REMOTE
    for number in range(2):
        source = source.replace(f"@{number}", "" if number == missing else "cg::this_cluster().sync();")
    args = [np.empty(128, np.float32), np.arange(128, dtype=np.float32)]
    return run_kernel(source, "k", args, 4, 32, cluster=2, written=[0], options=Options(seed=seed))


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_remote_shared_memory_needs_a_cluster_barrier_before_and_after(seed: int) -> None:
    assert not remote(None, seed).reports
    for missing, word in ((0, "may not have begun"), (1, "end")):
        found = remote(missing, seed).reports
        assert found and any(r.kind == "race" and word in r.message for r in found), (missing, found)


def test_remote_shared_memory_that_nobody_has_declared_yet() -> None:
    # In a process of its own: the emulator keeps what it knows of a resident block's arrays between launches.
    code = (
        f"import sys; sys.path.insert(0, {__file__.rsplit('/', 1)[0]!r}); from test_grid import remote\n"
        "print([r.kind for r in remote(0, 0).reports][0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "race", done.stderr
