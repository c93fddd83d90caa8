# SPDX-License-Identifier: Apache-2.0
"""Kernels for every architecture with a device model: they compile for it, fit as planned, and are right."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import numpy as np
import pytest
import tvm

import tvm_stitch.relax
from cuda_emulator import Options, lower, run_lowered
from stitch_testing.reference.relax import evaluate, mismatches
from stitch_testing.resources import has_compiler, kernel_resources
from tvm_stitch import explain
from tvm_stitch.device import device_model
from tvm_stitch.plan.gpu.occupancy import blocks_per_sm
from tvm_stitch.testing.workloads import cases, grid_cases

#: Of what nvcc 13 compiles for one each of equal limits, and without sm_90, which the other tests are about.
ARCHITECTURES = ["sm_75", "sm_86", "sm_89", "sm_100", "sm_120"]
#: Bytes a thread that a kernel at the limit of its registers may spill, outside of its loops over memory.
FEW = 64


def skip_unless_compiled(arch: str) -> None:
    """Skip where there is no nvcc, or one that is older than the architecture or has dropped it."""
    if not has_compiler():
        pytest.skip("needs nvcc")
    known = subprocess.run(["nvcc", "--list-gpu-code"], capture_output=True, text=True, check=True).stdout
    if arch not in known.split():
        pytest.skip(f"this nvcc does not compile for {arch}")


def module() -> tvm.IRModule:
    """Build a grid-wide kernel that retains what it read, big enough to fill each device."""
    return grid_cases.batch_norm_training(60_001, 256).build()


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    "build",
    [module, lambda: cases.softmax(3, 900_000).build()],
    ids=["grid", "split"],
)
def test_what_the_plan_counts_on_is_what_the_compiler_makes(
    arch: str, build: Callable[[], tvm.IRModule]
) -> None:
    skip_unless_compiled(arch)
    target = tvm.target.Target({"kind": "cuda", "arch": arch}, host="llvm")
    device = device_model(target)
    (kernel,) = explain(build(), target).kernels
    lowered = lower(build(), target, tvm_stitch.relax.pipeline(target))
    (used,) = kernel_resources(lowered.source, arch).values()
    resident = blocks_per_sm(
        device, kernel.launch["threads"], used.registers, max(used.shared, kernel.shared_bytes)
    )
    assert kernel.launch["blocks"] <= resident * device.sms
    assert used.spilled <= FEW


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_grid_wide_kernels_are_right_on_a_device_that_is_just_large_enough(arch: str) -> None:
    target = tvm.target.Target({"kind": "cuda", "arch": arch}, host="llvm")
    case = grid_cases.batch_norm_training(3001, 24)
    inputs = case.inputs(np.random.default_rng(5))
    artifact = lower(case.build(), target, tvm_stitch.relax.pipeline(target))
    options = Options(multiprocessors=device_model(target).sms)
    run = run_lowered(artifact, inputs, seed=3, options=options).check()
    assert len(run.launches) == 1
    assert mismatches(run.outputs, evaluate(case.build(), inputs), case.tolerance) == []
