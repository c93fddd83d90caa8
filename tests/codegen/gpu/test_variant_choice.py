# SPDX-License-Identifier: Apache-2.0
"""Of a kernel's variants exactly one is launched, the first that serves."""

from __future__ import annotations

import pytest
from tvm import tirx
from tvm.relax import op as R

from cuda_emulator import run_lowered
from cuda_emulator.lowering import lower
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import build, draw, plan, symbol
from tvm_stitch import compat
from tvm_stitch.codegen.gpu.variant_choice import launched
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline


def softmax() -> tuple[object, tirx.Var]:
    n, m = symbol("n"), symbol("m")
    return build(lambda emit, x: R.nn.softmax(x, axis=-1), ((n, m), "float32")), m


CHOSEN = {
    0: 0, 1: 0, 128: 0, 129: 2, 132: 1, 1023: 2, 1024: 1, 1025: 4, 1028: 3, 8191: 4, 8192: 3, 8193: 6, 8196: 5,
    32768: 5, 32769: 7, 65536: 7,
}  # fmt: skip


@pytest.mark.parametrize("columns", CHOSEN)
def test_one_variant_is_launched(columns: int) -> None:
    kernel_plan = plan(softmax()[0])
    (space,) = kernel_plan.stage.schedule.spaces
    (m,) = compat.free_vars(space)
    times = [compat.substitute(e, {m: tirx.const(columns, "int64")}) for e in launched(kernel_plan)]
    numbers = [int(compat.Analyzer().simplify(e).value) for e in times]
    assert numbers == [int(i == CHOSEN[columns]) for i in range(len(times))]


def test_a_static_plan_is_launched_once() -> None:
    mod = build(lambda emit, x: R.nn.softmax(x, axis=-1), ((4, 64), "float32"))
    assert launched(plan(mod)) == [1]


@pytest.mark.parametrize(
    ("columns", "threads"), [(100, 32), (132, 128), (1024, 128), (1025, 512), (33000, 512)]
)
def test_blocks_are_as_the_length_asks(columns: int, threads: int) -> None:
    target = emulated_target()
    lowered = lower(softmax()[0], target, pipeline(target))
    (launch,) = run_lowered(lowered, draw([((5, columns), "float32")])).check().launches
    assert launch.block[0] == threads


def test_variants_count_as_one_kernel() -> None:
    target = emulated_target()
    assert count_kernels(softmax()[0], target, pipeline(target)).total == 1
