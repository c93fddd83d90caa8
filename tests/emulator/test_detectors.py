# SPDX-License-Identifier: Apache-2.0
"""Each detector of memory faults catches a planted one, and stays quiet on the same kernel without it."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_emulator import EmulatedRun, Options, run_kernel
from tests.emulator.planted import FULL, kinds, out, ramp, run


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


def test_division_by_zero_and_unknown_ptx() -> None:
    assert kinds(run("out[tid] = 7 / (int)x[tid];", out(64), ramp(64), written=[0])) == {"crash"}
    assert kinds(
        run('asm volatile("wgmma.fence.sync.aligned;"); out[tid] = 1;', out(64), ramp(64), written=[0])
    ) == {"unsupported"}


def test_check_lists_the_faults() -> None:
    bad = run("out[tid + 1] = 1;", out(64), ramp(64), written=[0])
    with pytest.raises(AssertionError, match="out-of-bounds: k out"):
        bad.check()
