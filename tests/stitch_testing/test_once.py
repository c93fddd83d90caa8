# SPDX-License-Identifier: Apache-2.0
"""A pipeline that runs once for each module."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax import op as R

from stitch_testing.once import once
from tests.graph.helpers import build, draw
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline

TARGET = tvm.target.Target("llvm")


def test_a_module_that_is_counted_and_compiled_runs_through_its_passes_once() -> None:
    first, second = (build(lambda emit, x: R.nn.softmax(x), ((8, 16), "float32")) for _ in range(2))
    given: list[tvm.IRModule] = []

    def counting(mod: tvm.IRModule) -> tvm.IRModule:
        given.append(mod)
        return pipeline(TARGET)(mod)

    passes = once(counting)
    assert count_kernels(first, TARGET, passes).total == 1
    vm = relax.VirtualMachine(tvm.compile(first, TARGET, relax_pipeline=passes), tvm.cpu())
    (x,) = draw([((8, 16), "float32")])
    assert abs(vm["main"](tvm.runtime.tensor(x)).numpy().sum() - 8) < 1e-5
    assert len(given) == 1
    passes(second)  # another one, although it is equal
    assert len(given) == 2
