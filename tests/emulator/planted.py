# SPDX-License-Identifier: Apache-2.0
"""Runs of kernels with planted faults in the emulator, and the kinds of their findings."""

from __future__ import annotations

import numpy as np

from cuda_emulator import EmulatedRun, run_kernel

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
