# SPDX-License-Identifier: Apache-2.0
"""Kernels for rows of symbolic length: which lengths have one, and what serves all others."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from tests.choices import CHOICES
from tests.graph.helpers import H200, build, check_emulated, draw, plan, symbol
from tvm_stitch.device import GPUS
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.plan.gpu.mapping import Storage
from tvm_stitch.plan.memory import traffic
from tvm_stitch.plan.shared_memory import shared_bytes
from tvm_stitch.relax import pipeline


def softmax(columns: Any, dtype: str = "float32", rows: Any = None) -> Any:
    rows = symbol("n") if rows is None else rows
    return build(lambda emit, x: R.nn.softmax(x, axis=-1), ((rows, columns), dtype))


def test_short_rows_stay_in_registers_with_vectors_and_without() -> None:
    kernel_plan = plan(softmax(symbol("m")))
    bounds = [(v.longest, [(s.name, number) for s, number in v.multiples]) for v in kernel_plan.variants]
    longer = [(longest, chosen) for longest in (1024, 8192, 32768) for chosen in ([("m", 4)], [])]
    assert bounds == [(128, []), *longer]
    for variant in kernel_plan.variants:
        m = variant.stage.row_mapping
        ((columns, mapping),) = m.columns.items()
        assert m.storage is Storage.REGISTERS and mapping.steps == 1
        assert m.block_columns(columns) >= variant.longest
        assert mapping.vector == (4 if variant.multiples else 1)


def test_rows_of_any_length_are_stepped_through() -> None:
    kernel_plan = plan(softmax(symbol("m")))
    m = kernel_plan.stage.row_mapping
    ((_, mapping),) = m.columns.items()
    assert m.storage is Storage.NOWHERE and not isinstance(mapping.steps, int)
    assert not kernel_plan.stage.schedule.kept_values and not kernel_plan.stage.schedule.kept_loads


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_rows_have_vectors_of_eight(dtype: str) -> None:
    kernel_plan = plan(softmax(symbol("m"), dtype))
    assert {number for v in kernel_plan.variants for _, number in v.multiples} == {8}


def test_extents_that_are_multiples_need_no_condition() -> None:
    kernel_plan = plan(softmax(symbol("m") * 8))
    assert [v.multiples for v in kernel_plan.variants] == [()] * len(CHOICES.symbolic_lengths)
    assert kernel_plan.stage.row_mapping.columns[kernel_plan.stage.schedule.spaces[0]].vector == 4


def test_no_symbol_of_a_sum_is_taken_for_a_multiple() -> None:
    kernel_plan = plan(softmax(symbol("m") + 1))
    assert [v.longest for v in kernel_plan.variants] == list(CHOICES.symbolic_lengths)
    assert not any(v.multiples for v in kernel_plan.variants)


def test_static_rows_have_no_variants() -> None:
    assert plan(softmax(512)).variants == ()


def test_elementwise_rows_of_symbolic_length_are_flat() -> None:
    n, m = symbol("n"), symbol("m")
    mod = build(lambda emit, x, y: R.multiply(x, emit(R.exp(y))), ((n, m), "float32"), ((n, 1), "float32"))
    kernel_plan = plan(mod)
    assert kernel_plan.stage.alignment.domain.flat and kernel_plan.variants == ()


@pytest.mark.parametrize("device", [H200, GPUS["h100"]])
def test_no_variant_exceeds_the_device(device: Any) -> None:
    kernel_plan = plan(softmax(symbol("m")), device)
    for stage in [kernel_plan.stage, *(v.stage for v in kernel_plan.variants)]:
        assert stage.row_mapping.block <= device.max_threads_per_block
    assert shared_bytes(kernel_plan) <= device.shared_per_block


def test_what_a_variant_keeps_is_read_once() -> None:
    n, m = symbol("n"), symbol("m")
    found = traffic(plan(softmax(m, rows=n)))
    assert found.moved == found.least


def test_few_rows_do_not_hold_up_what_needs_no_reduction() -> None:
    """A sum of everything has one block, and exp(x) all of them. Operators that read the sum stay with it."""
    n, m = symbol("n"), symbol("m")

    def body(emit: Any, x: relax.Expr) -> Any:
        e = emit(R.exp(x))
        return [e, R.divide(e, emit(R.sum(e)))]

    target = emulated_target()
    mod = build(body, ((n, m), "float32"))
    report = tvm_stitch.explain(mod, target)
    assert [len(k.operators) for k in report.kernels] == [1, 2]
    assert any("would leave the device idle" in b["reason"] for b in report.boundaries)
    assert count_kernels(mod, target, pipeline(target)).total <= count_kernels(mod, target).total


def three_of_a_row() -> Any:
    """Three inputs of half type, each read again behind the last reduction of all."""
    n, m = symbol("n"), symbol("m")

    def body(emit: Any, *xs: relax.Expr) -> Any:
        peak = emit(R.add(emit(R.max(xs[0], -1, True)), emit(R.max(xs[1], -1, True))))
        peak = emit(R.multiply(peak, emit(R.max(xs[2], -1, True))))
        return [R.subtract(x, peak) for x in xs]

    return build(body, *[((n, m), "float16")] * 3)


def test_what_no_register_holds_is_in_shared_memory() -> None:
    kernel_plan = plan(three_of_a_row())
    storage = {v.longest: v.stage.row_mapping.storage for v in kernel_plan.variants}
    assert storage[8192] is Storage.REGISTERS and storage[32768] is Storage.SHARED


@pytest.mark.parametrize("columns", [5, 8195, 8200, 20001, 32768])
def test_rows_in_shared_memory_are_right(columns: int) -> None:
    check_emulated(three_of_a_row(), draw([((2, columns), "float16")] * 3))


def test_rows_without_columns_touch_no_memory() -> None:
    target = emulated_target()
    empty = draw([((2, 0), "float16")] * 3)
    run_cuda(three_of_a_row(), empty, target=target, relax_pipeline=pipeline(target)).check()


def test_many_inputs_leave_long_rows_to_the_kernel_of_all() -> None:
    """Neither registers nor shared memory hold eleven values of each of 32768 columns."""
    n, m = symbol("n"), symbol("m")

    def body(emit: Any, *xs: relax.Expr) -> Any:
        total = xs[0]
        for x in xs[1:]:
            total = emit(R.add(total, emit(R.exp(x))))
        peak = emit(R.max(total, -1, True))
        for x in xs:
            total = emit(R.subtract(total, emit(R.multiply(x, peak))))
        return total

    kernel_plan = plan(build(body, *[((n, m), "float32")] * 11))
    assert kernel_plan.variants and max(v.longest for v in kernel_plan.variants) < 32768
