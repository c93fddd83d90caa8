# SPDX-License-Identifier: Apache-2.0
"""Preparing CUDA C: kernels, shared arrays and inline PTX are found, lines keep their numbers."""

from __future__ import annotations

import pytest

from cuda_emulator.ptx import rewrite_ptx
from cuda_emulator.source import prepare_source

SOURCE = """
#include <cuda/std/cstdint>
// __global__ void not_this() {
extern "C" __global__ void __launch_bounds__(256, 2) first(float* __restrict__ a_ptr, int64_t n);
extern "C" __global__ void __launch_bounds__(256, 2) first(float* __restrict__ a_ptr, int64_t n) {
  __shared__ alignas(64) float s_ptr[8];
  __shared__ unsigned int t[2][3];
  a_ptr[0] = s_ptr[0] + t[0][0];
}
extern "C" __global__ void __maxnreg__(40) second(const half* x) {
  extern __shared__ __align__(64) uchar buf[];
  __shared__ int u[4];
}
"""


def test_kernels_and_their_parameters() -> None:
    prepared = prepare_source(SOURCE)
    assert prepared.kernels == {"first": ("a_ptr", "n"), "second": ("x",)}
    assert "EMU_ENTRY(first)" in prepared.text and "EMU_ENTRY(second)" in prepared.text
    assert prepared.lengths["first"] > prepared.lengths["second"] > 50


def test_shared_arrays_are_numbered_per_kernel() -> None:
    text = prepare_source(SOURCE).text
    assert "__shared__" not in text
    assert 'emu_shared(1, sizeof(emu_array_s_ptr), sizeof(float), 64, "s_ptr")' in text
    assert 'emu_shared(2, sizeof(emu_array_t), sizeof(unsigned int), alignof(unsigned int), "t")' in text
    assert 'emu_shared(1, sizeof(emu_array_u), sizeof(int), alignof(int), "u")' in text
    assert "uchar* const buf = (uchar*)emu_dynamic_shared();" in text


def test_lines_keep_their_numbers() -> None:
    prepared = prepare_source(SOURCE).text.splitlines()
    start = next(i for i, line in enumerate(prepared) if line.startswith("#line 1")) + 1
    original = SOURCE.splitlines()
    assert "a_ptr[0] = s_ptr[0]" in original[7] and "a_ptr[0] = s_ptr[0]" in prepared[start + 7]


@pytest.mark.parametrize(
    "source", ["int x;", 'extern "C" __global__ void k() { __shared__ float* const p; }']
)
def test_what_is_not_understood_is_an_error(source: str) -> None:
    with pytest.raises(ValueError, match="kernel|shared"):
        prepare_source(source)


@pytest.mark.parametrize(
    "ptx, expected",
    [
        ('asm volatile("barrier.cluster.arrive.aligned;");', "(emu_cluster_arrive(__LINE__, 1));"),
        ('asm volatile("barrier.cluster.arrive.release;");', "(emu_cluster_arrive(__LINE__, 1));"),
        ('asm volatile("barrier.cluster.arrive.relaxed;");', "(emu_cluster_arrive(__LINE__, 0));"),
        ('asm volatile("fence.acq_rel.cluster;");', "(emu_fence());"),
        ('asm volatile("fence.acq_rel.cta;");', "((void)0);"),
        (
            'asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));',
            "((d) = emu_map_rank((a), (b)));",
        ),
        (
            'asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(p), "f"(f(x, 1)) : "memory");',
            "(emu::store_shared<float>((p), emu::to_bits<float>((f(x, 1)))));",
        ),
        ('asm volatile("fence.proxy.async;");', "((void)0);"),
        ('asm volatile("mov.u32 %0, %%laneid;" : "=r"(l));', "((l) = ((emu_thread_idx().x"),
        ('asm volatile("wgmma \\"x\\";");', '(emu_unsupported(__LINE__, "PTX is not emulated: wgmma'),
    ],
)
def test_ptx(ptx: str, expected: str) -> None:
    assert rewrite_ptx(ptx).startswith(expected)


def test_ptx_over_several_lines_and_in_directives() -> None:
    text = '#define __asm__ asm\nasm volatile(\n  "bar.sync 0;"\n  ::: "memory");\nint x;\n'
    assert rewrite_ptx(text) == "#define __asm__ asm\n(emu_block_barrier(__LINE__, 0, 0))\n\n;\nint x;\n"
