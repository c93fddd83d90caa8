# SPDX-License-Identifier: Apache-2.0
"""Grid-wide kernels: one cooperative launch where the device has that, else the same phases as kernels of their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch.relax
from cuda_emulator import Options, lower, run_lowered
from stitch_testing.planted import barriers, cooperative_kernels
from stitch_testing.random.graphs import emulated_target
from stitch_testing.reference.relax import evaluate, mismatches
from stitch_testing.stitch_graphs import stitch_graph
from tests.graph.helpers import H200, build, check_emulated, cuda_source, draw, grid_plan
from tvm_stitch import explain
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import DeviceModel
from tvm_stitch.plan.choose import choose_plan
from tvm_stitch.plan.kernel import KernelPlan
from tvm_stitch.plan.verify import problems
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING
from tvm_stitch.testing.workloads import grid_cases
from tvm_stitch.testing.workloads.grid_case import GridCase

F32 = "float32"
APART = StitchConfig(grid_barriers=False)
ALONE = replace(H200, name="alone", cooperative=False, max_cluster=1)
"""It can launch neither cooperatively nor in clusters."""

#: Several blocks work in all phases.
CASES = [
    grid_cases.layer_norm_backward(301, 97),
    grid_cases.layer_norm_backward(40, 5003),
    grid_cases.batch_norm_training(700, 257),
    grid_cases.batch_norm_training(2003, 13),
    grid_cases.cross_entropy(300, 31),
    grid_cases.column_sum(4001, 31),
    grid_cases.column_sum(300, 4099),
    grid_cases.clip_adam([(300, 41), (1,), (257,), (5, 3, 7), (64,), (20000,)]),
    grid_cases.deviation_sum(301, 257),
    grid_cases.standardize_by_max(301, 257),
    grid_cases.figure7(301, 33, 521),
]


def label(case: GridCase) -> str:
    return case.label


def on(monkeypatch: pytest.MonkeyPatch, device: DeviceModel) -> None:
    """Compile for this device, whatever the target."""
    for module in ("relax.stitch.schedule_stitch_ops", "scope.for_target"):
        monkeypatch.setattr(f"tvm_stitch.{module}.device_model", lambda *_: device)


def force(monkeypatch: pytest.MonkeyPatch, barriers: bool) -> list[KernelPlan]:
    """Force a grid-wide plan even if one row domain would serve, and yield the plans."""
    made: list[KernelPlan] = []

    def forced(graph: Any, device: DeviceModel, config: StitchConfig) -> KernelPlan:
        made.append(grid_plan(graph, device, barriers))
        return made[-1]

    monkeypatch.setattr("tvm_stitch.relax.stitch.schedule_stitch_ops.choose_plan", forced)
    return made


def check_case(case: GridCase, config: StitchConfig | None = None) -> list[Any]:
    """Check results and findings under two orders, and return the launches of one call."""
    mod, target = case.build(), emulated_target()
    artifact = lower(mod, target, tvm_stitch.relax.pipeline(target, config), LOWERING)
    inputs = case.inputs(np.random.default_rng(5))
    expected = evaluate(mod, inputs)
    for seed, strict in ((0, True), (1, False)):  # strict_rewrite sees scratch that two live values share
        run = run_lowered(artifact, inputs, seed=seed, options=Options(strict_rewrite=strict)).check()
        assert mismatches(run.outputs, expected, case.tolerance) == []
    return run.launches


@pytest.mark.parametrize("case", CASES, ids=label)
def test_a_phase_is_a_kernel_without_barriers(monkeypatch: pytest.MonkeyPatch, case: GridCase) -> None:
    made = force(monkeypatch, barriers=False)
    launches = check_case(case)
    (plan,) = made
    assert problems(plan) == []
    assert len(launches) == len(plan.phases) > 1
    assert not any(launch.cooperative for launch in launches)
    assert {launch.grid[0] for launch in launches} == {plan.shared_grid.blocks}


@pytest.mark.parametrize("case", CASES, ids=label)
def test_a_phase_ends_at_a_barrier(monkeypatch: pytest.MonkeyPatch, case: GridCase) -> None:
    made = force(monkeypatch, barriers=True)
    (launch,) = check_case(case)
    (plan,) = made
    assert launch.cooperative and launch.grid[0] == plan.shared_grid.blocks
    assert launch.grid[0] % H200.sms == 0 and len(plan.phases) > 1


@pytest.mark.parametrize("case", CASES, ids=label)
def test_devices_without_cooperative_launches(monkeypatch: pytest.MonkeyPatch, case: GridCase) -> None:
    on(monkeypatch, ALONE)
    launches = check_case(case)
    assert not any(launch.cooperative or launch.cluster[0] > 1 for launch in launches)
    op_graph = stitch_graph(case.build())
    plan, with_barriers = choose_plan(op_graph, ALONE), choose_plan(op_graph, H200)
    if plan.grid_wide:
        assert len(launches) == len(plan.phases)
    if with_barriers.grid_wide:  # a small stage is evaluated by every block only where blocks stay
        assert plan.grid_wide and len(plan.phases) >= len(with_barriers.phases)


def test_the_option_does_what_such_a_device_does() -> None:
    case = grid_cases.layer_norm_backward(301, 97)
    launches = check_case(case, APART)
    assert [launch.cooperative for launch in launches] == [False, False]
    source = cuda_source(case.build(), APART)
    assert barriers(source) == 0 and barriers(cuda_source(case.build())) == 1


def test_kernels_share_reading() -> None:
    """dx and what a row adds to both sums come of one reading of x and dy."""
    case = grid_cases.layer_norm_backward(65536, 768)
    report = explain(case.build(), emulated_target(), APART)
    (plan,) = report.kernels
    data = 65536 * 768 * 4
    assert (plan.launch["kernels"], plan.launch["grid barriers"]) == (2, 0)
    assert 3 * data < plan.bytes_read + plan.bytes_written < 3.02 * data


def test_a_total_is_finished_by_each_kernel_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partial results outlive the phase in which blocks that stay would have read them."""

    def body(emit: Any, x: Any) -> Any:
        total = emit(R.sum(x))
        most = emit(R.max(emit(R.divide(x, total))))
        least = emit(R.min(emit(R.multiply(x, most))))
        return [R.subtract(emit(R.multiply(x, least)), emit(R.add(total, most)))]

    shape = (67, 71)
    for with_barriers in (True, False):
        made = force(monkeypatch, with_barriers)
        mod = build(body, (shape, F32))
        check_emulated(mod, draw([(shape, F32)], low=0.1), launches=1 if with_barriers else 4)
        (plan,) = made
        assert problems(plan) == []
        assert len(plan.scratch) == (2 if with_barriers else 3)


def test_totals_are_finished_once_by_blocks_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel of its own takes them from scratch again."""
    case = grid_cases.standardize_by_max(301, 257)
    reads = {}
    for with_barriers in (True, False):
        force(monkeypatch, with_barriers)
        text = cuda_source(case.build())
        reads[with_barriers] = len(re.findall(r"= \(?total", text)), text.count("scratch")
    assert reads[False][1] > reads[True][1]


def test_one_wave_and_one_barrier_between_phases() -> None:
    case = grid_cases.batch_norm_training(2003, 13)
    target = emulated_target()
    artifact = lower(case.build(), target, tvm_stitch.relax.pipeline(target), LOWERING)
    plan = choose_plan(stitch_graph(case.build()), H200)
    assert plan.grid_wide
    assert barriers(artifact) == len(plan.phases) - 1 > 0
    assert len(cooperative_kernels(artifact)) == len(artifact.kernels) == 1
    bound = re.search(r"__launch_bounds__\((\d+), (\d+)\)", artifact.source)
    assert bound is not None
    assert (int(bound[1]), int(bound[2])) == (plan.shared_grid.threads, plan.shared_grid.blocks_per_sm)


@pytest.mark.parametrize("barriers_kept", [True, False], ids=["barriers", "kernels"])
@pytest.mark.parametrize("sms", [1, 2, 7])
def test_any_number_of_multiprocessors(
    monkeypatch: pytest.MonkeyPatch, sms: int, barriers_kept: bool
) -> None:
    on(monkeypatch, replace(H200, sms=sms, cooperative=barriers_kept))
    for case in (
        grid_cases.layer_norm_backward(37, 96),
        grid_cases.batch_norm_training(97, 301),
        grid_cases.clip_adam([(31, 8), (257,), (1,)]),
    ):
        check_case(case)


SIDE_BY_SIDE = [(300, 40), (257,), (1,), (5, 3, 7), (64,)]


def test_parts_of_a_phase_run_on_blocks_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = force(monkeypatch, barriers=True)
    check_case(grid_cases.clip_adam(SIDE_BY_SIDE))
    (plan,) = made
    parts = plan.phases[-1]
    assert len(parts) == len(SIDE_BY_SIDE)
    first = [part.offset for part in parts]
    assert first == sorted(first) and len(set(first)) == len(first)


def transposed(emit: Callable[..., Any], x: Any) -> Any:
    """Rows of the one are columns of the other."""
    e = emit(R.exp(emit(R.subtract(x, emit(R.max(x, 1, True))))))
    rows = emit(R.divide(e, emit(R.sum(e, 1, True))))
    return [rows, emit(R.divide(rows, emit(R.sum(rows, 0, True))))]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(67, 71), (300, 24), (40, 1201)], ids=str)
def test_softmax_along_both_axes(shape: tuple[int, int], dtype: str) -> None:
    mod: tvm.IRModule = build(transposed, (shape, dtype))
    run = check_emulated(mod, draw([(shape, dtype)]))
    assert run.launches[0].cooperative
    check_emulated(mod, draw([(shape, dtype)]), launches=None, config=APART)


@pytest.mark.parametrize("with_barriers", [True, False], ids=["barriers", "kernels"])
def test_values_of_an_earlier_phase_are_gathered(
    monkeypatch: pytest.MonkeyPatch, with_barriers: bool
) -> None:
    """From scratch, where an input of a phase is that no operator names: as data, and as indices."""
    rows, columns = 301, 67

    def body(emit: Any, x: Any, where: Any, table: Any, which: Any) -> Any:
        sums = emit(R.sum(emit(R.exp(x)), 0))
        taken = emit(R.sum(emit(R.cos(emit(R.take(sums, where, 0))))))
        found = emit(R.max(which, 0))
        return [
            emit(R.subtract(sums, taken)),
            emit(R.take(emit(R.exp(table)), found, 0)),
            emit(R.take(sums, found, 0)),
        ]

    specs = [((rows, columns), F32), ((16,), "int32"), ((9,), F32), ((rows, columns), "int32")]
    made = force(monkeypatch, with_barriers)
    mod, inputs = build(body, *specs), draw(specs)
    inputs[1] = np.abs(inputs[1])
    inputs[3] = np.random.default_rng(1).integers(0, np.arange(columns) % 9 + 1, (rows, columns), "int32")
    check_emulated(mod, inputs, launches=None)
    assert max(len(plan.phases) for plan in made) > 1
    assert all(problems(plan) == [] for plan in made)


def test_values_that_hoisted_ones_read_are_written_once() -> None:
    """Single values are evaluated before a kernel's tasks. Each step of a chain reads the step before three times."""

    def chains(steps: int) -> tvm.IRModule:
        def total(emit: Any, value: Any) -> Any:
            quotients = []
            for _ in range(steps):
                above = emit(R.add(value, relax.const(1.0, F32)))
                value = emit(R.where(emit(R.less(value, relax.const(4.0, F32))), above, value))
                quotients.append(emit(R.divide(relax.const(1.0, F32), value)))
            return reduce(lambda a, b: emit(R.add(a, b)), quotients)

        return build(lambda emit, *given: [total(emit, x) for x in given], ((20,), F32), ((), F32))

    inputs = [np.linspace(-0.75, 3, 20, dtype=F32), np.float32(1.5).reshape(())]
    check_emulated(chains(6), inputs)
    few, many = (len(cuda_source(chains(steps))) for steps in (3, 6))
    assert many < 3 * few
