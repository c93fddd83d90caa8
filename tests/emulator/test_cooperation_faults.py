# SPDX-License-Identifier: Apache-2.0
"""Faults of threads that work together are found: barriers, shuffles, atomics and launches that do not fit."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_emulator import Options, run_kernel
from tests.emulator.planted import FULL, kinds, out, ramp, run


def test_grid_barrier_needs_a_cooperative_launch() -> None:
    source = (
        "#include <cooperative_groups.h>\n"
        'extern "C" __global__ void k(float* out) { cooperative_groups::this_grid().sync(); '
        "out[blockIdx.x] = 1; }"
    )
    assert not run_kernel(source, "k", [out(4)], 4, 1, cooperative=True, written=[0]).reports
    assert "launch" in kinds(run_kernel(source, "k", [out(4)], 4, 1, written=[0]))


def test_barrier_after_exit_of_some_threads() -> None:
    body = "out[tid] = 1; if (tid >= 40) return; __syncthreads();"
    bad = run(body, out(64), ramp(64), written=[0])
    assert kinds(bad) == {"divergent-barrier"}
    assert not run(body.replace("40", "64"), out(64), ramp(64), written=[0]).reports


def test_different_barriers_in_a_branch() -> None:
    body = "out[tid] = 1; if (tid < @) {\n__syncthreads();\n} else {\n__syncthreads();\n}"
    bad = run(body.replace("@", "32"), out(64), ramp(64), written=[0])
    assert kinds(bad) == {"divergent-barrier"}
    assert not run(body.replace("@", "64"), out(64), ramp(64), written=[0]).reports


def test_barrier_in_a_uniform_branch_is_fine() -> None:
    body = "if (bid == 0) { __syncthreads(); } out[bid * 64 + tid] = 1;"
    assert not run(body, out(128), ramp(64), grid=2, written=[0]).reports


def test_deadlock_between_grid_and_block_barrier() -> None:
    source = (
        "#include <cooperative_groups.h>\n"
        'extern "C" __global__ void k(float* out, int n) { out[blockIdx.x * 64 + threadIdx.x] = 1;'
        " if (threadIdx.x < n) cooperative_groups::this_grid().sync(); else __syncthreads(); }"
    )
    good = run_kernel(source, "k", [out(128), 64], 2, 64, cooperative=True, written=[0])
    assert not good.reports
    bad = run_kernel(source, "k", [out(128), 32], 2, 64, cooperative=True, written=[0])
    assert kinds(bad) == {"deadlock", "divergent-barrier"}


def test_block_that_skips_a_grid_barrier() -> None:
    source = (
        "#include <cooperative_groups.h>\n"
        'extern "C" __global__ void k(float* out) { out[blockIdx.x] = 1; '
        "if (blockIdx.x) cooperative_groups::this_grid().sync(); }"
    )
    assert "divergent-barrier" in kinds(
        run_kernel(source, "k", [out(3)], 3, 1, cooperative=True, written=[0])
    )


def test_warp_waits_for_lanes_at_a_barrier() -> None:
    body = f"float v = 1; if (tid < 16) v = __shfl_xor_sync({FULL}, v, 1); __syncthreads(); out[tid] = v;"
    assert kinds(run(body, out(32), ramp(32), block=32, written=[0])) == {"shuffle"}
    good = body.replace(FULL, "0xffffu")
    assert not run(good, out(32), ramp(32), block=32, written=[0]).reports


def test_shuffle_from_a_lane_outside_the_mask() -> None:
    body = "float v = tid; if (tid < 16) v = __shfl_sync(0xffffu, v, @); out[tid] = v;"
    good = run(body.replace("@", "15"), out(32), ramp(32), block=32, written=[0])
    assert not good.reports
    assert (good.outputs[0][:16] == 15).all()
    bad = run(body.replace("@", "16"), out(32), ramp(32), block=32, written=[0])
    assert kinds(bad) == {"shuffle"}
    assert np.isnan(bad.outputs[0][:16]).all()


def test_shuffle_by_a_lane_outside_its_mask() -> None:
    body = "out[tid] = __shfl_sync(0xffffu, x[tid], 0);"
    assert kinds(run(body, out(32), ramp(32), block=32, written=[0])) == {"shuffle"}


def test_shuffle_from_lanes_that_never_were() -> None:
    body = f"out[tid] = __shfl_xor_sync({FULL}, x[tid], 16);"
    assert kinds(run(body, out(16), ramp(16), block=16, written=[0])) == {"shuffle"}
    assert not run(body, out(32), ramp(32), block=32, written=[0]).reports


def test_down_shuffle_past_the_end_is_poison_and_a_fault_only_when_strict() -> None:
    body = f"out[tid] = __shfl_down_sync({FULL}, x[tid], 1);"
    loose = run(body, out(16), ramp(16), block=16, written=[0])
    assert not loose.reports
    np.testing.assert_array_equal(loose.outputs[0][:15], ramp(16)[1:])
    assert np.isnan(loose.outputs[0][15])
    strict = Options(strict_shuffle=True)
    assert kinds(run(body, out(16), ramp(16), block=16, written=[0], options=strict)) == {"shuffle"}


def test_atomics_do_not_race_with_each_other_but_with_plain_accesses() -> None:
    body = (
        "__shared__ int n[1]; if (tid == 0) n[0] = 0; __syncthreads(); atomicAdd(n, 1); "
        "@ if (tid == 0) out[0] = n[0];"
    )
    good = run(body.replace("@", "__syncthreads();"), out(1), ramp(1), written=[0])
    assert not good.reports
    assert good.outputs[0][0] == 64
    for order in (0, 5):
        bad = run(body.replace("@", ""), out(1), ramp(1), written=[0], options=Options(seed=order))
        assert kinds(bad) == {"race"}


def test_atomics_over_blocks() -> None:
    good = run(
        "atomicAdd(out, x[tid]); atomicMax((int*)out + 1, (int)tid);",
        np.zeros(2, "float32"),
        ramp(64),
        grid=3,
        inout=[0],
    )
    assert not good.reports
    assert good.outputs[0][0] == 3 * ramp(64).sum()
    assert good.outputs[0].view("int32")[1] == 63
    assert kinds(run("atomicAdd(out, 1.0f);", out(1), ramp(1), written=[0])) == {"uninitialized-read"}


@pytest.mark.parametrize(
    "body", ["while (atomicAdd(x, 1.0f) >= 0.0f) {}", 'while (tid < 100) { asm volatile(""); }']
)
def test_endless_kernel_is_given_up(body: str) -> None:
    limits = Options(max_accesses=10000, max_seconds=0.2)
    result = run(body + " out[tid] = 1;", out(64), ramp(64), written=[0], options=limits)
    assert kinds(result) == {"timeout"}


@pytest.mark.parametrize(
    "launch", [{"block": 1025}, {"grid": (1, 70000)}, {"block": (1, 1, 65)}, {"grid": 3, "cluster": 2}]
)
def test_impossible_launches(launch: dict[str, object]) -> None:
    result = run("out[0] = 1;", out(1), ramp(1), **launch)
    assert kinds(result) == {"launch"}


@pytest.mark.parametrize(
    "barrier, caught", [("cg::this_cluster().sync();", False), ("__syncthreads();", True)]
)
def test_cluster_distributed_shared_memory(barrier: str, caught: bool) -> None:
    source = f"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void k(float* out, float* x) {{
  __shared__ float s[32];
  unsigned rank = cg::this_cluster().block_rank();
  s[threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
  {barrier}
  float* other = cg::this_cluster().map_shared_rank(s, rank ^ 1);
  out[blockIdx.x * 32 + threadIdx.x] = other[threadIdx.x];
  cg::this_cluster().sync();
}}"""
    result = run_kernel(source, "k", [out(128), ramp(128)], 4, 32, cluster=2, written=[0])
    assert bool(result.reports) == caught
    if not caught:
        expected = ramp(128).reshape(2, 2, 32)[:, ::-1].reshape(-1)
        np.testing.assert_array_equal(result.outputs[0], expected)
    else:
        assert kinds(result) & {"race", "uninitialized-read", "out-of-bounds"}


def test_a_dependent_launch_waits_before_it_accesses_memory() -> None:
    wait = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
    source = (
        'extern "C" __global__ void k(float* out, const float* in) { @; out[threadIdx.x] = in[threadIdx.x]; }'
    )
    arrays = [out(64), ramp(64)]
    waits, not_all = source.replace("@", wait), source.replace("@", f"if (threadIdx.x < 60) {wait}")
    assert not run_kernel(waits, "k", arrays, 1, 64, written=[0], dependent=True).reports
    assert not run_kernel(source.replace("@", ""), "k", arrays, 1, 64, written=[0]).reports
    for bad in (not_all, source.replace("@", "")):
        found = run_kernel(bad, "k", arrays, 1, 64, written=[0], dependent=True)
        assert kinds(found) == {"launch"}
        assert {report.array for report in found.reports} == {"in", "out"}
