# SPDX-License-Identifier: Apache-2.0
"""The dlight rule: what it schedules runs right, and what needs scratch it leaves to other rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op as R
from tvm.s_tir import dlight as dl

from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from stitch_testing.reference.bounds import evaluate_bounds, violations
from tests.graph.helpers import build, draw, prim_funcs
from tvm_stitch.codegen.gpu.memory.scratch import WORKSPACE_ATTR
from tvm_stitch.rules import StitchRule

F32 = "float32"
PASSES = [
    relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps(),
    relax.transform.FuseTIR(),
]  # fmt: skip


def scheduled(mod: tvm.IRModule) -> dict[str, tirx.PrimFunc]:
    """Return the functions of a module after TVM's fusion and the rule."""
    with emulated_target():
        return prim_funcs(tvm.transform.Sequential([*PASSES, dl.ApplyDefaultSchedule(StitchRule())])(mod))


def is_scheduled(func: tirx.PrimFunc) -> bool:
    return bool(func.attrs and "tirx.is_scheduled" in func.attrs)


def sum_of(shape: tuple[int, ...], axis: Any) -> tvm.IRModule:
    return build(lambda emit, x: R.sum(emit(R.exp(x)), axis), (shape, F32))


@pytest.mark.parametrize("shape", [(64, 1024), (4, 100_000)])
def test_rows_are_scheduled(shape: tuple[int, int]) -> None:
    """Rows of a block, and rows of a cluster, need no scratch."""
    funcs = scheduled(sum_of(shape, 1))
    assert funcs and all(is_scheduled(f) for f in funcs.values())


@pytest.mark.parametrize(
    "mod",
    [lambda: sum_of((2, 4_000_000), 1), lambda: sum_of((65536, 256), 0), lambda: sum_of((4096, 4096), None)],
    ids=["split rows", "columns", "all"],
)
def test_no_function_gets_scratch_that_nobody_allocates(mod: Callable[[], tvm.IRModule]) -> None:
    made = mod()
    with emulated_target():
        before = prim_funcs(tvm.transform.Sequential(PASSES)(made))
    for name, func in scheduled(made).items():
        assert len(func.params) == len(before[name].params)
        assert not (func.attrs and WORKSPACE_ATTR in func.attrs)
        assert "grid_sync" not in func.script()


def test_compute_intensive_functions_are_declined() -> None:
    funcs = scheduled(build(lambda emit, x, w: R.matmul(x, w), ((32, 16), F32), ((16, 32), F32)))
    assert [is_scheduled(f) for f in funcs.values()] == [False]


@pytest.mark.parametrize("axis", [0, 1, None], ids=str)
def test_what_it_schedules_is_right(axis: int | None) -> None:
    mod = sum_of((70, 96), axis)
    target = emulated_target()

    @tvm.transform.module_pass(opt_level=0)
    def pipeline(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        from tvm.relax.backend import cuda

        rules = dl.ApplyDefaultSchedule(StitchRule(), dl.gpu.Reduction(), dl.gpu.Fallback())
        late = [*cuda.pipeline.dataflow_lower_passes(target), *cuda.pipeline.finalize_passes(target)]
        with target:
            return tvm.transform.Sequential([*PASSES, rules, *late])(mod)

    inputs = draw([((70, 96), F32)])
    done = run_cuda(mod, [np.array(x) for x in inputs], target=target, relax_pipeline=pipeline).check()
    assert violations(list(done.outputs), evaluate_bounds(mod, inputs)) == []
