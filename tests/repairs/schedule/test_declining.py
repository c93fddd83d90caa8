# SPDX-License-Identifier: Apache-2.0
"""TVM's schedule rules that fail decline, and the next one schedules the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op as R
from tvm.s_tir import dlight as dl

from cuda_emulator import lower, run_cuda
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import build, draw, legalize, prim_funcs, symbol
from tests.repairs import faults
from tvm_stitch.config import StitchConfig
from tvm_stitch.relax.pipeline import pipeline, stitch_passes
from tvm_stitch.repairs.schedule.declining import ApplyDecliningRules
from tvm_stitch.support.interrupts import watched

F32 = "float32"
gpu = dl.gpu
RULES = (gpu.Matmul, gpu.GEMV, gpu.Reduction, gpu.GeneralReduction, gpu.Fallback)

Case = tuple[list[Any], str, str]


def matvec(rows: Any, columns: int) -> list[Any]:
    return [((3, rows, columns), F32), ((3, columns, 1), F32)]


def product(emit: Any, x: Any, w: Any, *_: Any) -> list[Any]:
    return [R.nn.relu(emit(R.matmul(x, w)))]


def failing(n: Any) -> dict[str, Case]:
    """Matmuls for some extent n, the rule of dlight's that fails on each where n is symbolic, and what it says."""
    return {
        "an odd number of rows": (matvec(7, 31), "GEMV", "AssertionError"),
        "more rows than a tile": (matvec(33, 7), "GEMV", "'Add' object has no attribute 'value'"),
        "2n+1 rows": (matvec(n * 2 + 1, 6), "GEMV", "does not have compact dataflow"),
        "n+1 columns": ([((n, n * 2), F32), ((n * 2, n + 1), F32)], "Matmul", "known at run time only"),
        "n/2 columns": (
            [((n + 1, 7), F32), ((7, n // 2), F32)], "Matmul", "known at run time only",
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", failing(1))
def test_what_stock_cannot_compile_runs_right(name: str) -> None:
    n = symbol("n")
    specs, _, _ = failing(n)[name]
    mod, target = build(product, *specs, ((n,), F32)), emulated_target()  # the last tells n
    with pytest.raises(Exception):  # noqa: B017  the day that stock compiles it, the case shows nothing any more
        tvm.compile(mod, target)
    if name == "2n+1 rows":  # Fallback's host code allocates memory, which is not emulated
        assert tvm.compile(mod, target, relax_pipeline=pipeline(target))
        return
    x, w, y = draw([*failing(6)[name][0], ((6,), F32)])
    done = run_cuda(mod, [x, w, y], target=target, relax_pipeline=pipeline(target)).check()
    expected = np.maximum(np.matmul(x.astype(np.float64), w.astype(np.float64)), 0)
    np.testing.assert_allclose(done.outputs[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", failing(1))
def test_who_declined_is_known(name: str) -> None:
    specs, rule, reason = failing(symbol("n"))[name]
    target = emulated_target()
    declined: dict[str, dict[str, str]] = {}
    with target:
        mod = tvm.transform.Sequential(stitch_passes(target, StitchConfig()))(build(product, *specs))
        after = ApplyDecliningRules(*(rule() for rule in RULES), declined=declined)(mod)
    (found,) = declined.values()
    assert reason in found[rule]
    assert all(f.attrs["tirx.is_scheduled"] for f in prim_funcs(after).values())


class Failing(dl.ScheduleRule):
    """A rule that raises."""

    def __init__(self, error: Callable[[], BaseException]):
        super().__init__()
        self.error = error

    def apply(self, func: Any, target: Any, tunable: bool) -> Any:
        raise self.error()


def scheduled(*rules: Any) -> tvm.IRModule:
    target = emulated_target()
    with target:
        mod = tvm.transform.Sequential(stitch_passes(target, StitchConfig()))(
            build(product, ((8, 16), F32), ((16, 8), F32))
        )
        return ApplyDecliningRules(*rules)(mod)


def test_the_first_failure_is_told_where_no_rule_has_a_schedule() -> None:
    with pytest.raises(ValueError, match="first"):
        scheduled(Failing(lambda: ValueError("first")), Failing(lambda: TypeError("second")))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interrupts_end_the_compile(error: type[BaseException]) -> None:
    with watched(), pytest.raises(error):
        scheduled(Failing(error), gpu.Fallback())


@pytest.mark.parametrize("rows", [2, 7, 40, 301])
def test_rows_that_are_no_multiple_of_a_block_are_not_written_beyond(rows: int) -> None:
    """Stock TVM's matrix times vector writes up to 15 elements beyond its result (0.27)."""
    mod = build(lambda emit, x, w: [R.matmul(x, w)], ((rows, 33), F32), ((33, 1), F32))
    inputs = draw([((rows, 33), F32), ((33, 1), F32)])
    target = emulated_target()
    done = run_cuda(mod, inputs, target=target, relax_pipeline=pipeline(target))
    assert done.reports == []
    np.testing.assert_allclose(done.outputs[0], inputs[0].astype("float64") @ inputs[1], rtol=1e-5, atol=1e-5)


def test_rows_that_fill_their_blocks_keep_the_rule() -> None:
    (func,) = prim_funcs(
        legalize(build(lambda emit, x, w: [R.matmul(x, w)], ((64, 512), F32), ((512, 1), F32)))
    ).values()
    declined: dict[str, dict[str, str]] = {}
    with emulated_target() as target:
        wanted = gpu.GEMV().apply(func, target, False).mod["main"]
        apply = ApplyDecliningRules(*(rule() for rule in RULES), declined=declined)
        found = apply(tvm.IRModule({"main": func}))["main"]
    assert declined == {}
    tvm.ir.assert_structural_equal(
        found.without_attr("tirx.is_scheduled"), wanted.without_attr("tirx.is_scheduled")
    )


def test_reductions_across_threads_that_tvm_cannot_lower() -> None:
    """A grouped convolution of one dimension: dlight's reduction across threads has a loop of outputs inside."""
    specs = [((2, 16, 33), F32), ((16, 4, 3), F32)]
    mod = build(lambda emit, x, w: [R.nn.relu(emit(R.nn.conv1d(x, w, strides=2, groups=4)))], *specs)
    target = emulated_target()
    with pytest.raises(Exception, match="Cross-thread reduction requires"):
        tvm.compile(mod, target)
    x, w = draw(specs)
    done = run_cuda(mod, [x, w], target=target, relax_pipeline=pipeline(target)).check()
    windows = np.lib.stride_tricks.sliding_window_view(x.astype("float64"), 3, axis=-1)[:, :, ::2]
    windows = windows.reshape(2, 4, 4, 16, 3)
    expected = np.einsum("ngclk,gock->ngol", windows, w.astype("float64").reshape(4, 4, 4, 3))
    np.testing.assert_allclose(
        done.outputs[0], np.maximum(expected.reshape(2, 16, 16), 0), rtol=1e-5, atol=1e-5
    )


def test_fault() -> None:
    mod = build(product, *matvec(7, 31))
    faults.needed(faults.raises(lambda: tvm.compile(mod, faults.CUDA)), "schedule/declining.py")


def test_repair() -> None:
    mod = build(product, *matvec(7, 31))
    assert lower(mod, faults.CUDA, faults.left_to_tvm(faults.CUDA))
    with faults.without("ApplyDecliningRules"):
        assert faults.raises(lambda: lower(mod, faults.CUDA, faults.left_to_tvm(faults.CUDA)))
