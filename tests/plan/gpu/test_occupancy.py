# SPDX-License-Identifier: Apache-2.0
"""Occupancy as CUDA computes it."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tvm_stitch.device import GPUS, DeviceModel, device_model
from tvm_stitch.plan.gpu.occupancy import blocks_in_shared, blocks_per_sm

H200 = GPUS["h200"]
ARCHS = {
    "rtx5090": 120,
    "b200": 100,
    "h200": 90,
    "h100": 90,
    "rtx4090": 89,
    "orin": 87,
    "rtx3090": 86,
    "a100": 80,
    "t4": 75,
    "v100": 70,
}

# Device, threads a block, registers a thread, bytes of shared memory a block: blocks an SM, by cuda_occupancy.h.
KNOWN = [
    ("h200", 1024, 32, 0, 2),
    ("h200", 1024, 33, 0, 1),
    ("h200", 1024, 64, 0, 1),
    ("h200", 1024, 65, 0, 0),
    ("h200", 256, 32, 0, 8),
    (
        "h200",
        256,
        130,
        0,
        1,
    ),  # 136 with the unit of 8, 3 warps in each sub-partition: 12 warps, one block of 8
    ("h200", 512, 128, 0, 1),
    ("h200", 256, 80, 0, 3),
    ("h200", 96, 72, 0, 9),  # 28 warps of 2304 registers
    ("h200", 32, 16, 0, 32),
    ("h200", 32, 255, 0, 8),
    ("h200", 128, 16, 227 * 1024, 1),
    ("h200", 128, 16, 113 * 1024, 2),  # (228 - 2) / 2: a kilobyte of each block is the system's
    ("h200", 128, 16, 114 * 1024, 1),
    ("h200", 128, 16, 227 * 1024 + 1, 0),
    ("a100", 128, 16, 81 * 1024, 2),
    ("a100", 128, 16, 163 * 1024, 1),
    ("v100", 128, 16, 48 * 1024, 2),
    ("t4", 32, 16, 0, 16),
    ("t4", 1024, 32, 0, 1),
]


@pytest.mark.parametrize(("name", "threads", "registers", "shared", "expected"), KNOWN)
def test_known_occupancy(name: str, threads: int, registers: int, shared: int, expected: int) -> None:
    assert blocks_per_sm(GPUS[name], threads, registers, shared) == expected


@pytest.mark.parametrize(
    ("name", "shared", "expected"),
    [
        ("h200", 0, 228),  # a kilobyte of each block is the system's
        ("h200", 227 * 1024, 1),
        ("h200", 227 * 1024 + 1, 0),
        ("h200", 113 * 1024, 2),
        ("h200", 113 * 1024 + 1, 1),
        ("v100", 0, 32),
        ("v100", 32 * 1024, 3),
        ("v100", 32 * 1024 + 1, 2),
    ],
)
def test_what_shared_memory_holds(name: str, shared: int, expected: int) -> None:
    assert blocks_in_shared(GPUS[name], shared) == expected


def test_steps_of_shared_memory_count_for_a_kernel() -> None:
    """Blocks of 10,150 bytes with the system's part get 10,240 each."""
    shared = H200.shared_per_sm // 23 - H200.shared_reserved
    assert blocks_in_shared(H200, shared) == 23 and blocks_per_sm(H200, 32, 0, shared) == 22


ORACLE = r"""
#include <cstdio>
#include <climits>
#include <cuda_occupancy.h>
int main() {
  int cc, max_threads, regs_sm, threads, regs, reserved;
  size_t per_block, per_sm, shared;
  while (scanf("%d %d %d %zu %zu %d %d %d %zu", &cc, &max_threads, &regs_sm, &per_block, &per_sm, &reserved,
               &threads, &regs, &shared) == 9) {
    cudaOccDeviceProp p;
    p.computeMajor = cc / 10; p.computeMinor = cc % 10;
    p.maxThreadsPerBlock = 1024; p.maxThreadsPerMultiprocessor = max_threads;
    p.regsPerBlock = p.regsPerMultiprocessor = regs_sm; p.warpSize = 32;
    p.sharedMemPerBlock = 48 * 1024; p.sharedMemPerMultiprocessor = per_sm; p.numSms = 1;
    p.sharedMemPerBlockOptin = per_block; p.reservedSharedMemPerBlock = reserved;
    cudaOccFuncAttributes a;
    a.maxThreadsPerBlock = INT_MAX; a.numRegs = regs;
    a.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN; a.maxDynamicSharedSizeBytes = per_block;
    cudaOccDeviceState s;
    cudaOccResult r;
    cudaOccError e = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &a, &s, threads, shared);
    printf("%d\n", e == CUDA_OCC_SUCCESS ? r.activeBlocksPerMultiprocessor : -int(e));
  }
}
"""


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NVIDIA's own calculator, as the CUDA toolkit ships it."""
    if not shutil.which("nvcc"):
        pytest.skip("needs the CUDA toolkit")
    folder = tmp_path_factory.mktemp("occupancy")
    (folder / "oracle.cu").write_text(ORACLE)
    subprocess.run(["nvcc", "-o", "oracle", "oracle.cu"], cwd=folder, check=True)
    return folder / "oracle"


@pytest.mark.parametrize("name", GPUS)
def test_occupancy_is_what_cuda_computes(oracle: Path, name: str) -> None:
    gpu, arch = GPUS[name], ARCHS[name]
    draw = random.Random(arch)
    cases = [(t, r, s) for n, t, r, s, _ in KNOWN if n == name]
    edges = [
        0,
        1,
        1024,
        48 * 1024,
        gpu.shared_per_sm // 2 - 1024,
        gpu.shared_per_sm // 2,
        gpu.shared_per_block,
    ]
    for _ in range(3000):
        shared = draw.choice([*edges, draw.randrange(gpu.shared_per_block + 1)])
        cases.append(
            (
                draw.choice([draw.randrange(1, 1025), 32 * draw.randrange(1, 33)]),
                draw.randrange(1, 256),
                shared,
            )
        )
    reserved = 1024 if arch >= 80 else 0
    prefix = f"{arch} {gpu.threads_per_sm} {gpu.registers_per_sm} {gpu.shared_per_block} {gpu.shared_per_sm} {reserved}"
    text = "".join(f"{prefix} {t} {r} {s}\n" for t, r, s in cases)
    answers = subprocess.run([oracle], input=text, text=True, capture_output=True, check=True).stdout.split()
    wrong = [
        (case, ours, int(theirs))
        for case, theirs in zip(cases, answers, strict=True)
        if (ours := blocks_per_sm(gpu, *case)) != max(0, int(theirs))
    ]
    assert not wrong, wrong[:5]
    assert len(set(answers)) > 5  # the cases were not all of one kind


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, 32), "0 threads"),
        ((32, 256), "0 to 255 registers, not 256"),
        ((32, -1), "not -1"),
        ((32, 32, -4), "-4 bytes"),
    ],
)
def test_impossible_numbers_are_errors(numbers: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        blocks_per_sm(H200, *numbers)


def test_a_cpu_holds_no_blocks() -> None:
    cpu: DeviceModel = device_model("llvm")
    with pytest.raises(ValueError, match="cpu runs no blocks of threads"):
        blocks_per_sm(cpu, 32, 32)
