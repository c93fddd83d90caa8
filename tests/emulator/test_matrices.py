# SPDX-License-Identifier: Apache-2.0
"""ldmatrix, mma and copies in the background, as the PTX manual has them, and mistakes with them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from cuda_emulator import run_kernel

HEAD = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
__device__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
"""
COPY = """
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
        : : "r"(address(to)), "l"(from), "r"(bytes) : "memory");
"""
WAIT = 'asm volatile("cp.async.wait_all;" : : : "memory");'

PRODUCT = """
extern "C" __global__ void kernel(float* out, const TYPE* a, const TYPE* b) {
  __shared__ __align__(16) TYPE rows[16 * 16];
  __shared__ __align__(16) TYPE columns[16 * 8];
  const int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) rows[i] = a[i];
  for (int i = lane; i < 128; i += 32) columns[i] = b[i];
  __syncthreads();
  unsigned x[4], y[4];
  unsigned from = address(&rows[lane % 16 * 16 + lane / 16 * 8]);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from));
  from = address(&columns[lane % 16 * 8]);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3]) : "r"(from));
  float d[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  asm("mma.sync.aligned.m16n8k16.row.col.f32.KIND.KIND.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  for (int i = 0; i < 4; ++i) out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}
"""


WORDS = """
extern "C" __global__ void kernel(unsigned* out, const unsigned* in) {
  const unsigned a = in[3 * threadIdx.x], b = in[3 * threadIdx.x + 1], c = in[3 * threadIdx.x + 2];
  unsigned found;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(found) : "r"(a), "r"(b), "r"(c));
  out[2 * threadIdx.x] = found;
  out[2 * threadIdx.x + 1] = __byte_perm(a, b, 0xd260);
}
"""


def test_operations_on_three_words_and_on_bytes() -> None:
    """The table 0x6a is (a & b) ^ c. Selectors pick bytes of two words, or with 8 added the sign of one."""
    words = np.random.default_rng().integers(0, 2**32, (32, 3), dtype=np.uint32)
    run = run_kernel(
        HEAD + WORDS, "kernel", [np.empty((32, 2), "uint32"), words], grid=1, block=32, written=[0]
    )
    run.check()
    a, b, c = words.T
    np.testing.assert_array_equal(run.outputs[0][:, 0], (a & b) ^ c)
    picked = run.outputs[0][:, 1].copy().view("uint8").reshape(32, 4)
    bytes_of_a, bytes_of_b = (each.copy().view("uint8").reshape(32, 4) for each in (a, b))
    sign = np.where(bytes_of_b[:, 1] & 128, 255, 0)
    wanted = np.stack([bytes_of_a[:, 0], bytes_of_b[:, 2], bytes_of_a[:, 2], sign], 1)
    np.testing.assert_array_equal(picked, wanted)


@pytest.mark.parametrize(("kind", "name"), [("f16", "half"), ("bf16", "__nv_bfloat16")])
def test_a_product_of_fragments(kind: str, name: str) -> None:
    """<16, 16> by <16, 8>, the right side read transposed, onto 1 to 4 by place."""
    rng = np.random.default_rng()
    dtype = np.float16 if kind == "f16" else ml_dtypes.bfloat16
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((16, 16), (16, 8)))
    source = HEAD + PRODUCT.replace("TYPE", name).replace("KIND", kind)
    run = run_kernel(source, "kernel", [np.empty((16, 8), "float32"), a, b], grid=1, block=32, written=[0])
    run.check()
    places = np.array([[1, 2]] * 8 + [[3, 4]] * 8, "float64")
    wanted = a.astype("float64") @ b.astype("float64") + np.tile(places, 4)
    np.testing.assert_allclose(run.outputs[0], wanted, rtol=1e-5, atol=1e-5)


def copied(before: str = WAIT, bytes_: str = "16", shift: int = 0) -> str:
    return (
        HEAD
        + """
extern "C" __global__ void kernel(float* out, const float* x) {
  __shared__ __align__(16) float rows[36];
  const int lane = threadIdx.x;
  if (lane < 8) {
    float* to = rows + 4 * lane + SHIFT;
    const float* from = x + 4 * lane;
    int bytes = BYTES;
    COPY
  }
  BEFORE
  __syncthreads();
  out[lane] = rows[lane];
}
""".replace("SHIFT", str(shift))
        .replace("BYTES", bytes_)
        .replace("COPY", COPY)
        .replace("BEFORE", before)
    )


def run_copies(source: str) -> list[str]:
    x = np.arange(1, 33, dtype="float32")
    run = run_kernel(source, "kernel", [np.empty(32, "float32"), x], grid=1, block=32, written=[0])
    wanted = np.where(np.arange(32) % 4 < 2, x, 0) if "bytes = 8" in source else x
    if not run.reports and not np.array_equal(run.outputs[0], wanted):
        return ["wrong"]
    return sorted({report.kind for report in run.reports})


def test_copies_arrive() -> None:
    assert run_copies(copied()) == [] and run_copies(copied(bytes_="8")) == []


def test_what_is_not_waited_for_is_not_there() -> None:
    assert run_copies(copied(before="")) == ["wrong"]


def test_copies_race_with_readers() -> None:
    """A barrier before the wait orders nothing that arrives later."""
    late = copied().replace(f"{WAIT}\n  __syncthreads();", f"__syncthreads();\n  {WAIT}")
    assert "race" in run_copies(late)


def test_copies_are_aligned() -> None:
    assert "misaligned" in run_copies(copied(shift=1))


def test_rows_of_matrices_are_aligned() -> None:
    source = HEAD + PRODUCT.replace("TYPE", "half").replace("KIND", "f16").replace(
        "lane / 16 * 8])", "lane / 16 * 4])"
    )
    arrays = [np.empty((16, 8), "float32"), np.zeros((16, 16), "float16"), np.zeros((16, 8), "float16")]
    run = run_kernel(source, "kernel", arrays, grid=1, block=32, written=[0])
    assert {report.kind for report in run.reports} == {"misaligned"}
