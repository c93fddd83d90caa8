# SPDX-License-Identifier: Apache-2.0
"""Each detector catches a planted fault and stays quiet on the same kernel without it."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_emulator import EmulatedRun, Options, run_kernel

FULL = "0xffffffffu"
_SHORT = "#define tid threadIdx.x\n#define bid blockIdx.x\n"


def run(
    body: str,
    *args: object,
    grid: object = 1,
    block: object = 64,
    params: str = "float* out, float* x",
    **more: object,
) -> EmulatedRun:
    source = _SHORT + f'extern "C" __global__ void __launch_bounds__(1024) k({params}) {{\n{body}\n}}\n'
    return run_kernel(source, "k", args, grid, block, **more)  # type: ignore[arg-type]


def kinds(result: EmulatedRun) -> set[str]:
    return {r.kind for r in result.reports}


def ramp(n: int, dtype: str = "float32") -> np.ndarray:
    return np.arange(n).astype(dtype)


def out(n: int, dtype: str = "float32") -> np.ndarray:
    return np.empty(n, dtype)


def reverse_through_shared(barrier: str) -> EmulatedRun:
    return run(
        f"__shared__ alignas(64) float s[64]; s[tid] = x[tid]; {barrier}out[tid] = s[63 - tid];",
        out(64),
        ramp(64),
        written=[0],
    )


def test_race_shared_missing_barrier() -> None:
    good = reverse_through_shared("__syncthreads();")
    assert not good.reports
    np.testing.assert_array_equal(good.outputs[0], ramp(64)[::-1])
    bad = reverse_through_shared("")
    assert "race" in kinds(bad) or "uninitialized-read" in kinds(bad)
    assert any(r.array == "s" for r in bad.reports)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_race_read_then_write_is_found_in_any_order(seed: int) -> None:
    def twice(barrier: str) -> EmulatedRun:
        body = (
            "__shared__ float s[64]; s[tid] = x[tid]; __syncthreads();"
            f"float v = s[63 - tid]; {barrier} s[tid] = v; __syncthreads(); out[tid] = s[tid];"
        )
        return run(body, out(64), ramp(64), written=[0], options=Options(seed=seed))

    assert not twice("__syncthreads();").reports
    bad = twice("")
    assert kinds(bad) == {"race"}
    assert bad.reports[0].array == "s"


def test_race_reader_hidden_by_later_reads() -> None:
    # Thread 0 reads, then the writer itself reads: keeping only the last reader forgets thread 0.
    body = (
        "__shared__ float s[1]; if (tid == 32) s[0] = x[0]; __syncthreads();"
        "float v = 0; if (tid == 0) v = s[0];"
        "if (tid == 32) { v = s[0]; @ s[0] = v + 1; } @@ out[tid] = v;"
    )
    bad = run(body.replace("@@", "").replace("@", ""), out(64), ramp(64), written=[0])
    assert kinds(bad) == {"race"}
    good = run(
        body.replace("if (tid == 32) { v = s[0]; @ s[0] = v + 1; } @@", "if (tid == 32) v = s[0];"
                     "__syncthreads(); if (tid == 32) s[0] = v + 1;"),
        out(64), ramp(64), written=[0],
    )  # fmt: skip
    assert not good.reports


def test_warp_synchronisation_orders_within_the_warp_only() -> None:
    sync = "__syncwarp();"

    def neighbour(sync: str, distance: int) -> EmulatedRun:
        body = f"__shared__ float s[128]; s[tid] = x[tid]; {sync}out[tid] = s[tid ^ {distance}];"
        return run(body, out(64), ramp(64), written=[0])

    assert not neighbour(sync, 1).reports
    assert kinds(neighbour("", 1)) & {"race", "uninitialized-read"}
    assert kinds(neighbour(sync, 32)) & {"race", "uninitialized-read"}


@pytest.mark.parametrize(
    "operation",
    [f"__shfl_xor_sync({FULL}, 1.0f, 1);", f"__any_sync({FULL}, 1);", f"__reduce_add_sync({FULL}, 1);"],
)
def test_shuffles_votes_and_reductions_are_no_memory_barriers(operation: str) -> None:
    body = f"__shared__ float s[64]; s[tid] = x[tid]; {operation} @ out[tid] = s[tid ^ 1];"
    assert not run(body.replace("@", "__syncwarp();"), out(64), ramp(64), written=[0]).reports
    for seed in range(3):
        bad = run(body.replace("@", ""), out(64), ramp(64), written=[0], options=Options(seed=seed))
        assert kinds(bad) == {"race"}


def test_partial_warp_synchronisation_orders_its_lanes() -> None:
    def neighbour(distance: int) -> EmulatedRun:
        body = (
            "unsigned group = 0xffu << (tid / 8 % 4 * 8);"
            "__shared__ float s[64]; s[tid] = x[tid]; __syncwarp(group);"
            f"out[tid] = s[tid ^ {distance}];"
        )
        return run(body, out(64), ramp(64), written=[0])

    assert not neighbour(7).reports
    assert kinds(neighbour(8)) & {"race", "uninitialized-read"}


def test_reads_of_several_lanes_are_all_remembered() -> None:
    body = (
        "__shared__ float s[1]; if (tid == 5) s[0] = 1; __syncthreads(); float v = 0; if (@) v = s[0];"
        "if (tid == 1 || tid == 2) __syncwarp(6u); if (tid == 2) s[0] = 2; out[tid] = v;"
    )
    for reads, found in (("tid == 1", set()), ("tid < 2", {"race"})):
        assert kinds(run(body.replace("@", reads), out(32), ramp(1), block=32, written=[0])) == found


def test_race_between_blocks() -> None:
    body = (
        "if (threadIdx.x == 0) scratch[blockIdx.x] = x[blockIdx.x]; @ "
        "out[blockIdx.x * 32 + threadIdx.x] = scratch[(blockIdx.x + 1) % 4];"
    )
    include = "namespace cg = cooperative_groups; cg::this_grid().sync();"

    def with_barrier(barrier: str) -> EmulatedRun:
        source = (
            "#include <cooperative_groups.h>\n"
            'extern "C" __global__ void k(float* out, float* x, float* scratch) {'
            + body.replace("@", barrier)
            + "}"
        )
        return run_kernel(
            source, "k", [out(128), ramp(4), out(4)], 4, 32, cooperative=True, written=[0], scratch=[2]
        )

    good = with_barrier(include)
    assert not good.reports
    np.testing.assert_array_equal(good.outputs[0], np.repeat([1, 2, 3, 0], 32).astype("float32"))
    assert kinds(with_barrier("__syncthreads();")) & {"race", "uninitialized-read"}


def test_grid_barrier_needs_a_cooperative_launch() -> None:
    source = (
        "#include <cooperative_groups.h>\n"
        'extern "C" __global__ void k(float* out) { cooperative_groups::this_grid().sync(); '
        "out[blockIdx.x] = 1; }"
    )
    assert not run_kernel(source, "k", [out(4)], 4, 1, cooperative=True, written=[0]).reports
    assert "launch" in kinds(run_kernel(source, "k", [out(4)], 4, 1, written=[0]))


@pytest.mark.parametrize("index, caught", [("tid", False), ("tid + 1", True), ("(int)tid - 1", True)])
@pytest.mark.parametrize("write", [False, True])
def test_out_of_bounds_global(index: str, caught: bool, write: bool) -> None:
    body = f"x[{index}] = 1.0f; out[tid] = 0;" if write else f"out[tid] = x[{index}];"
    result = run(body, out(64), ramp(64), written=[0])
    assert kinds(result) == ({"out-of-bounds"} if caught else set())
    if caught:
        (report,) = result.reports
        assert (report.array, report.offset) == ("x", 64 if "+" in index else -1)
        assert report.thread == (63 if "+" in index else 0, 0, 0)


def test_a_wide_access_that_reaches_past_the_end() -> None:
    body = "float4 v = *(float4*)(x + 4); out[tid] = v.x;"
    assert not run(body, out(1), ramp(8), block=1, written=[0]).reports
    (report,) = run(body, out(1), ramp(7), block=1, written=[0]).reports
    assert (report.kind, report.array, report.offset) == ("out-of-bounds", "x", 4)


@pytest.mark.parametrize("size, caught", [(64, False), (63, True)])
def test_out_of_bounds_shared(size: int, caught: bool) -> None:
    body = f"__shared__ float a[{size}]; __shared__ float b[64]; a[tid] = 1; b[tid] = 2; out[tid] = b[tid];"
    result = run(body, out(64), ramp(64), written=[0])
    assert kinds(result) == ({"out-of-bounds"} if caught else set())
    if caught:
        assert (result.reports[0].array, result.reports[0].offset) == ("a", 63)


@pytest.mark.parametrize("nbytes, caught", [(256, False), (252, True)])
def test_out_of_bounds_dynamic_shared(nbytes: int, caught: bool) -> None:
    body = "extern __shared__ uchar buf[]; ((float*)buf)[tid] = 1; out[tid] = ((float*)buf)[tid];"
    defines = "#define tid threadIdx.x\n#define uchar unsigned char\n"
    source = defines + f'extern "C" __global__ void k(float* out) {{ {body} }}'
    result = run_kernel(source, "k", [out(64)], 1, 64, shared_bytes=nbytes, written=[0])
    assert ("out-of-bounds" in kinds(result)) == caught
    if not caught:
        assert not result.reports


def test_wild_access_is_reported_and_ends_the_launch() -> None:
    result = run("out[tid] = x[tid * 1000000000ll];", out(64), ramp(64), written=[0])
    assert kinds(result) == {"out-of-bounds"}
    result = run("out[tid] = *(float*)8;", out(64), ramp(64), written=[0])
    assert kinds(result) == {"out-of-bounds"}


def test_uninitialized_shared() -> None:
    def half(limit: int) -> EmulatedRun:
        body = f"__shared__ float s[64]; if (tid < {limit}) s[tid] = 1; __syncthreads(); out[tid] = s[tid];"
        return run(body, out(64), ramp(64), grid=1, written=[0])

    assert not half(64).reports
    bad = half(40)
    assert kinds(bad) == {"uninitialized-read"}
    assert (bad.reports[0].array, bad.reports[0].offset) == ("s", 40)
    assert np.isnan(bad.outputs[0][40:]).all()


def test_shared_memory_does_not_outlive_its_block() -> None:
    body = (
        "__shared__ float s[1]; if (bid == 0 && tid == 0) s[0] = 1; __syncthreads(); "
        "if (tid == 0) out[bid] = s[0];"
    )
    assert kinds(run(body, out(2), ramp(1), grid=2, written=[0])) == {"uninitialized-read"}
    assert not run(body, out(1), ramp(1), grid=1, written=[0]).reports


def test_uninitialized_output_read() -> None:
    assert kinds(run("out[tid] += 1;", out(64), ramp(64), written=[0])) == {"uninitialized-read"}
    assert not run("out[tid] += 1;", ramp(64), ramp(64), inout=[0]).reports


@pytest.mark.parametrize("value", ["1.0f", "x[tid]"])
def test_double_write(value: str) -> None:
    assert not run(f"out[tid] = {value};", out(64), ramp(64), written=[0]).reports
    bad = run(f"out[tid / 2] = {value};", out(32), ramp(64), written=[0])
    assert "double-write" in kinds(bad)
    assert bad.reports[0].array == "out"
    ordered = run(f"if (tid < 32) out[tid] = 0; __syncthreads(); if (tid >= 32) out[tid - 32] = {value};",
                  out(32), ramp(64), written=[0])  # fmt: skip
    assert kinds(ordered) == {"double-write"}


def test_double_write_between_blocks() -> None:
    bad = run("out[tid] = 1;", out(64), ramp(64), grid=2, written=[0])
    assert kinds(bad) == {"double-write", "race"}


def test_rewriting_by_the_same_thread_only_when_asked() -> None:
    body = "out[tid] = 0; out[tid] = 1;"
    assert not run(body, out(64), ramp(64), written=[0]).reports
    assert kinds(run(body, out(64), ramp(64), written=[0], options=Options(strict_rewrite=True))) == {
        "double-write"
    }


def test_unwritten_output() -> None:
    bad = run("if (tid != 7) out[tid] = 1;", out(64), ramp(64), written=[0])
    assert kinds(bad) == {"unwritten"}
    assert (bad.reports[0].array, bad.reports[0].offset) == ("out", 7)


@pytest.mark.parametrize("dtype", ["int8", "float16", "float64"])
def test_unwritten_and_double_writes_of_other_sizes(dtype: str) -> None:
    ctype = {"int8": "signed char", "float16": "unsigned short", "float64": "double"}[dtype]
    params = f"{ctype}* out"
    assert not run("out[tid] = 1;", out(64, dtype), params=params, written=[0]).reports
    assert kinds(run("out[tid ^ (tid == 9)] = 1;", out(64, dtype), params=params, written=[0])) >= {
        "double-write",
        "unwritten",
    }


def test_misaligned_vector_access() -> None:
    body = "*(float4*)(out + 4 * tid) = *(float4*)(x + 4 * tid + @);"
    good = run(body.replace("@", "0"), out(256), ramp(256), written=[0])
    assert not good.reports
    np.testing.assert_array_equal(good.outputs[0], ramp(256))
    bad = run(body.replace("@", "1"), out(256), ramp(257), written=[0])
    assert kinds(bad) == {"misaligned"}
    assert bad.reports[0].array == "x"


@pytest.mark.parametrize("align, caught", [("alignas(16) ", False), ("", True)])
def test_misaligned_shared_declaration(align: str, caught: bool) -> None:
    body = (
        f"__shared__ {align}float s[256]; *(float4*)(s + 4 * tid) = *(float4*)(x + 4 * tid); "
        "out[tid] = s[4 * tid];"
    )
    result = run(body, out(64), ramp(256), written=[0])
    assert kinds(result) == ({"misaligned"} if caught else set())


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


def test_division_by_zero_and_unknown_ptx() -> None:
    assert kinds(run("out[tid] = 7 / (int)x[tid];", out(64), ramp(64), written=[0])) == {"crash"}
    assert kinds(
        run('asm volatile("wgmma.fence.sync.aligned;"); out[tid] = 1;', out(64), ramp(64), written=[0])
    ) == {"unsupported"}


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


def test_check_lists_the_faults() -> None:
    bad = run("out[tid + 1] = 1;", out(64), ramp(64), written=[0])
    with pytest.raises(AssertionError, match="out-of-bounds: k out"):
        bad.check()
