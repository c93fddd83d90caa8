# SPDX-License-Identifier: Apache-2.0
"""Stores to a cluster's shared memory that a barrier there counts (st.async, mbarrier)."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_emulator import EmulatedRun, Options, run_kernel

SEEDS = pytest.mark.parametrize("seed", [0, 1, 2, 3])
HEAD = """#include <cstdint>
__device__ uint32_t address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ uint32_t there(const void* p, int rank) {
  uint32_t r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address(p)), "r"(rank));
  return r;
}
__device__ void init(const void* p) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address(p)), "r"(1) : "memory");
}
__device__ void fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ void expect(const void* p, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(address(p)), "r"(bytes) : "memory");
}
__device__ void send(uint32_t to, float v, uint32_t at) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
               ::"r"(to), "r"(__float_as_uint(v)), "r"(at) : "memory");
}
__device__ void await(const void* p, int parity) {
  uint32_t done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(address(p)), "r"(parity) : "memory");
}
__device__ void arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ void release() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
extern "C" __global__ void k(float* out, const float* x) {
  __shared__ float s[64];
  __shared__ uint64_t bar[2];
  const int t = threadIdx.x, at = blockIdx.x * 64 + t, other = (blockIdx.x & 1) ^ 1;
"""
MAKE = "if (t == 0) { init(&bar[0]); init(&bar[1]); fence(); } arrive(); wait();"
EXPECT = "if (t == 0) expect(&bar[0], 256);"
SEND = "send(there(&s[t], other), x[at], there(&bar[0], other));"
AWAIT = "await(&bar[0], 0);"
READ = "out[at] = s[t ^ 32];"


def run(body: str, seed: int = 0) -> EmulatedRun:
    """Run two clusters of two blocks of 64 threads, each of which sends what it reads to the other block of its
    cluster.
    """
    x = np.arange(256, dtype=np.float32)
    args = [np.empty_like(x), x]
    return run_kernel(HEAD + body + "}", "k", args, 4, 64, cluster=2, written=[0], options=Options(seed=seed))


def kinds(body: str, seed: int = 0) -> set[str]:
    done = run(body, seed)
    if not done.reports:
        sent = np.arange(256).reshape(2, 2, 2, 32)[:, ::-1, ::-1]
        np.testing.assert_array_equal(done.outputs[0].reshape(sent.shape), sent)
    return {r.kind for r in done.reports}


@SEEDS
def test_who_waits_reads_what_was_sent(seed: int) -> None:
    assert not kinds(f"{MAKE} {EXPECT} {SEND} {AWAIT} {READ}", seed)
    assert not kinds(f"{MAKE} {SEND} {EXPECT} {AWAIT} {READ}", seed)  # the bytes may be there first


@SEEDS
def test_who_does_not_wait_reads_too_early(seed: int) -> None:
    assert "race" in kinds(f"{MAKE} {EXPECT} {SEND} {READ} {AWAIT}", seed)
    half = f"{MAKE} {EXPECT} {SEND} if (t < 32) {{ {AWAIT} }}"
    assert "race" in kinds(f"{half} {READ} if (t >= 32) {{ {AWAIT} }}", seed)
    assert not kinds(f"{half} __syncthreads(); {READ}", seed)  # whoever meets one that waited knows of it
    # All is there by now, as it happens, but a relaxed arrival tells nobody.
    assert kinds(f"{half} arrive(); wait(); {READ} release(); wait();", seed) == {"race"}
    assert not kinds(f"{half} release(); wait(); {READ}", seed)


@SEEDS
def test_the_barrier_must_be_known_to_the_cluster(seed: int) -> None:
    """By a fence of its own before a relaxed arrival, or by one that releases."""
    unfenced = MAKE.replace(" fence();", "")
    rest = f"{EXPECT} {SEND} {AWAIT} {READ}"
    assert "race" in kinds(f"{unfenced} {rest}", seed)
    assert not kinds(f"{unfenced.replace('arrive', 'release')} {rest}", seed)
    late = "arrive(); if (t == 0) { init(&bar[0]); init(&bar[1]); fence(); } wait();"
    assert kinds(f"{late} {rest}", seed) & {"race", "uninitialized-read"}


@SEEDS
def test_nobody_sends_before_the_other_block_has_begun(seed: int) -> None:
    early = "if (t == 0) { init(&bar[0]); fence(); } arrive();"
    assert kinds(f"{early} {EXPECT} {SEND} wait(); {AWAIT} {READ}", seed) & {"race", "uninitialized-read"}


@SEEDS
def test_a_block_waits_for_what_is_sent_to_it(seed: int) -> None:
    end = "out[at] = x[at ^ 96];"
    assert "race" in kinds(f"{MAKE} {EXPECT} {SEND} {end}", seed)
    assert kinds(f"{MAKE} {EXPECT} {SEND} release(); wait(); {end}", seed) == {"race"}


@SEEDS
def test_a_slot_is_not_sent_to_while_it_is_read(seed: int) -> None:
    start = f"s[t] = x[at]; {MAKE}"
    read = "out[at] = s[t];"
    assert "race" in kinds(f"{start} {read} {EXPECT} {SEND} {AWAIT} {READ}", seed)
    assert not kinds(f"{start} {read} release(); wait(); {EXPECT} {SEND} {AWAIT} {READ}", seed)


def test_bytes_that_nobody_sends_are_a_deadlock() -> None:
    assert kinds(f"{MAKE} {EXPECT.replace('256', '260')} {SEND} {AWAIT} {READ}") == {"deadlock"}


def test_more_arrivals_than_a_barrier_was_made_for() -> None:
    assert "divergent-barrier" in kinds(f"{MAKE} {EXPECT} {EXPECT} {SEND} {AWAIT} {READ}")


def test_a_barrier_that_nobody_made() -> None:
    assert "uninitialized-read" in kinds(f"arrive(); wait(); {EXPECT} {SEND} {AWAIT} {READ}")


@SEEDS
def test_phases_follow_each_other(seed: int) -> None:
    """The parity of the second is one. Its data replace what everybody has read."""
    again = f"{EXPECT} send(there(&s[t], other), out[at] = x[at], there(&bar[0], other)); await(&bar[0], 1);"
    first = f"{MAKE} {EXPECT} {SEND} {AWAIT} float v = s[t ^ 32]; release(); wait();"
    assert not kinds(f"{first} {again} out[at] = 0.0f * v + s[t ^ 32];", seed)
    assert "race" in kinds(f"{first.replace('release(); wait();', '')} {again} {READ}", seed)


ROUND = """
  if (t == 0) { expect(&bar[0], 256); expect(&bar[1], 256); }
  send(there(&s[t], other), x[at], there(&bar[0], other));
  await(&bar[0], 0);
  float v = s[t ^ 32];
  SYNC
  send(there(&q[t], other), x[at], there(&bar[1], other));
  await(&bar[1], 0);
  if (t == 0) expect(&bar[0], 256);
  send(there(&s[t], other), x[at], there(&bar[0], other));
  await(&bar[0], 1);
  out[at] = 0.0f * (v + q[t]) + s[t ^ 32];
"""


@SEEDS
def test_a_store_releases_what_its_thread_knows(seed: int) -> None:
    """A slot may be sent to again by who waits for stores that all of its readers sent afterwards."""
    body = f"__shared__ float q[64]; {MAKE} {ROUND}"
    assert not kinds(body.replace("SYNC", "__syncthreads();"), seed)
    # Each thread tells of its own reads, and of no other's: all of them have sent.
    assert not kinds(body.replace("SYNC", ""), seed)
    late = body.replace("float v = s[t ^ 32];", "").replace(
        "await(&bar[1], 0);", "float v = s[t ^ 32]; await(&bar[1], 0);"
    )
    assert "race" in kinds(late.replace("SYNC", ""), seed)
    half = body.replace("SYNC", "").replace("256); expect(&bar[1], 256)", "256); expect(&bar[1], 128)")
    some = half.replace("send(there(&q[t], other)", "if (t < 32) send(there(&q[t], other)").replace(
        "+ q[t]", ""
    )
    assert "race" in kinds(some, seed)  # the other warp has read too
    assert not kinds(some.replace("float v = s[t ^ 32];", "float v = s[t ^ 32]; __syncthreads();"), seed)
    assert "race" in kinds(body.replace("SYNC", "").replace("await(&bar[1], 0);", "", 1), seed)
