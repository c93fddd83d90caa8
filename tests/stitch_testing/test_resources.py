# SPDX-License-Identifier: Apache-2.0
"""Resources that the compiler reports: read kernel by kernel, bounds respected, spills seen."""

from __future__ import annotations

import pytest

from stitch_testing import resources
from stitch_testing.resources import KernelResources, kernel_resources
from tvm_stitch.device import GPUS
from tvm_stitch.plan.gpu.occupancy import blocks_per_sm

needs_nvcc = pytest.mark.skipif(not resources.has_compiler(), reason="needs nvcc")


def tile(name: str, values: int, bounds: str = "") -> str:
    """Build a kernel that holds ``values`` registers' worth of data across a barrier."""
    return (
        f'extern "C" __global__ void {bounds} {name}(const float* x, float* y) {{\n'
        f"  __shared__ float s[64]; float t[{values}]; float sum = 0.f;\n"
        f"  #pragma unroll\n  for (int i = 0; i < {values}; ++i) {{ t[i] = x[i * 1024 + threadIdx.x]; sum += t[i]; }}\n"
        "  s[threadIdx.x % 64] = sum; __syncthreads(); sum = s[(threadIdx.x + 1) % 64];\n"
        f"  #pragma unroll\n  for (int i = 0; i < {values}; ++i) y[i * 1024 + threadIdx.x] = t[i] / sum;\n}}\n"
    )


@needs_nvcc
def test_each_kernel_is_reported() -> None:
    found = kernel_resources(tile("few", 4) + tile("many", 100))
    assert set(found) == {"few", "many"}
    assert found["few"].registers < 64 < 100 < found["many"].registers
    assert found["few"].shared == found["many"].shared == 64 * 4
    assert found["few"].spilled == found["few"].stack == 0


@needs_nvcc
@pytest.mark.parametrize(("blocks", "registers"), [(1, 255), (2, 128), (3, 80), (4, 64)])
def test_a_bound_on_blocks_is_a_bound_on_registers(blocks: int, registers: int) -> None:
    h200 = GPUS["h200"]
    assert blocks_per_sm(h200, 256, registers) == blocks
    (used,) = kernel_resources(tile("k", 120, f"__launch_bounds__(256, {blocks})")).values()
    assert used.registers <= registers
    assert blocks_per_sm(h200, 256, used.registers, used.shared) >= blocks
    assert (used.spilled > 0) == (registers < 120)


@needs_nvcc
def test_what_does_not_compile_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="nonsense"):
        kernel_resources("nonsense")


def test_without_a_compiler_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match="install the CUDA toolkit"):
        kernel_resources(tile("k", 4))


def test_functions_that_a_kernel_calls_are_not_taken_for_it() -> None:
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a_kernel' for 'sm_90'
ptxas info    : Function properties for a_kernel
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Function properties for helper
    64 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size, 2048 bytes smem, 368 bytes cmem[0]
ptxas info    : Compiling entry function 'b_kernel' for 'sm_90'
ptxas info    : Function properties for b_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
"""
    assert resources._parse(log) == {
        "a_kernel": KernelResources(registers=40, shared=2048, spilled=20, stack=16),
        "b_kernel": KernelResources(registers=8, shared=0, spilled=0, stack=0),
    }
