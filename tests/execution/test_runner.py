# SPDX-License-Identifier: Apache-2.0
"""Calls of compiled models."""

from __future__ import annotations

import time

import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.target import Target

from tests.graph.helpers import build
from tvm_stitch.execution.kernel_clock import HostClock
from tvm_stitch.execution.runner import Runner
from tvm_stitch.execution.tensors import make_inputs, specs_of_inputs

CPU = Target("llvm")


def test_kernel_times_are_a_part_of_the_call() -> None:
    mod = build(lambda emit, x: [emit(R.exp(x)), emit(R.nn.softmax(x))], ((2000, 4), "float32"))
    executable = tvm.compile(mod, CPU, relax_pipeline=relax.get_default_pipeline(CPU))
    runner = Runner(executable, CPU, list(make_inputs(specs_of_inputs(mod)).values()))
    kernels = [name for name in runner.calls() if not name.startswith("vm.builtin.")]
    assert len(kernels) == 2
    start = time.perf_counter()
    times = runner.kernel_times(HostClock(), len(kernels))
    assert [name for name, _ in times] == kernels
    assert 0 < sum(seconds for _, seconds in times) < time.perf_counter() - start
