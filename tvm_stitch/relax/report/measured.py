# SPDX-License-Identifier: Apache-2.0
"""Run and time a report's kernels one by one, alternating with those of TVM's own pipeline."""

from __future__ import annotations

import dataclasses
import platform
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tvm

from ...config import StitchConfig
from ...deploy.cpu_flags import needed_flags, why_not_here
from ...execution.kernel_clock import clock_of
from ...execution.runner import Runner
from ...execution.tensors import make_inputs, specs_of_inputs
from ...execution.timing import Times, interleaved
from ...repairs.legalize.take import stock_pipeline
from ...report.data import ModelReport, Spread
from ...support.interrupts import watched
from ...target import other_machine
from ..build import build
from ..rewriting.functions import entry_of

if TYPE_CHECKING:
    import numpy as np

Calls = list[tuple[str, float]]
"""The names and seconds of a run's kernels, in order."""


def measured(
    report: ModelReport,
    mod: tvm.IRModule,
    target: tvm.target.Target,
    config: StitchConfig,
    inputs: Sequence[np.ndarray] | None,
    repeats: int,
    seed: int,
) -> ModelReport:
    """Return the report with times of this machine. The model is compiled and run with stitching and without.

    CUDA graphs are not captured for it, because the kernels of a graph cannot be timed one by one.

    Args:
        report: the report of the model, with TVM's own kernels if TVM compiles it.
        mod: the module as the user passed it.
        target: the target to compile for.
        config: stitching options.
        inputs: inputs of the function that is run (``entry_of``), in order. None means random ones.
        repeats: number of timed calls with stitching, and of timed calls without.
        seed: seed of random inputs.

    Raises:
        RuntimeError: when this machine has no such device, or its CPU is too old.
        ValueError: when inputs with symbolic shapes are missing, or for a wrong number, shape or dtype of inputs.
            Also when the function to run is not unique.
    """
    check_runs_here(target)
    entry = entry_of(mod)
    specs = specs_of_inputs(mod, entry=entry)
    if inputs is None and not all(spec.is_static for spec in specs):
        raise ValueError(
            f"sizes are symbolic, {'; '.join(map(str, specs))}: give inputs, as measure(inputs=[...])"
        )
    values = list(inputs) if inputs is not None else list(make_inputs(specs, seed).values())
    if len(values) != len(specs):
        raise ValueError(
            f"{entry} takes {len(specs)} inputs, {'; '.join(map(str, specs))}; got {len(values)}"
        )
    for spec, value in zip(specs, values):
        dtype, shape = str(getattr(value, "dtype", type(value).__name__)), tuple(getattr(value, "shape", ()))
        if dtype != spec.dtype or not spec.takes(shape):
            given = f"{dtype}[{', '.join(map(str, shape))}]"
            raise ValueError(f"the input {spec} is given as {given}; give an array of its dtype and shape")
    with watched():
        executable = build(mod, target, dataclasses.replace(config, cuda_graph=False)).executable
        runners = [Runner(executable, target, values, entry)]
        if report.stock is not None:
            stock = tvm.compile(mod, target, relax_pipeline=stock_pipeline(target))
            runners.append(Runner(stock, target, values, entry))
        whole = interleaved(runners, repeats)
        # Kernels are timed last, because their profiler slows every later call down.
        rounds = kernel_rounds(report, runners, repeats)
    return with_times(report, whole, rounds, f"{_name(runners[0].device)}, {repeats} calls")


def kernel_rounds(report: ModelReport, runners: Sequence[Runner], repeats: int) -> list[list[Calls]]:
    """Return, by runner and round, the times of its kernels. Before each round there is a call that does not count.

    Args:
        report: the report of the model that the runners run.
        runners: the model with stitching, and compiled by TVM's own pipeline if the report has that.
        repeats: the number of rounds.
    """
    clock = clock_of(runners[0].device)
    expected = [len(report.kernels), len(report.stock_kernels)]
    rounds: list[list[Calls]] = [[] for _ in runners]
    for _ in range(repeats):
        for i, runner in enumerate(runners):
            runner.kernel_times(clock, expected[i])
            rounds[i].append(runner.kernel_times(clock, expected[i]))
    return rounds


def with_times(
    report: ModelReport, whole: Sequence[Times], rounds: Sequence[Sequence[Calls]], measured_on: str
) -> ModelReport:
    """Return the report with the times of calls and of kernels.

    Args:
        report: the report of the model, with TVM's own kernels if TVM compiles it.
        whole: times of a call with stitching, and by TVM's own pipeline if the report has that.
        rounds: the result of :func:`kernel_turns`.
        measured_on: the device, and the number of calls.
    """
    stitched = _matched([k.function for k in report.kernels], rounds[0])
    timed = dataclasses.replace(
        report,
        kernels=tuple(dataclasses.replace(k, measured=t) for k, t in zip(report.kernels, stitched)),
        stitched=dataclasses.replace(report.stitched, measured=_spread(whole[0].seconds)),
        measured_on=measured_on,
    )
    if report.stock is None:
        return timed
    apart = _matched([k.function for k in report.stock_kernels], rounds[1])
    totals = dataclasses.replace(report.stock, measured=_spread(whole[1].seconds))
    each = tuple(dataclasses.replace(k, measured=t) for k, t in zip(report.stock_kernels, apart))
    return dataclasses.replace(timed, stock=totals, stock_kernels=each)


def check_runs_here(target: tvm.target.Target) -> None:
    """Raise RuntimeError if code for a target does not run on this machine."""
    if "gpu" in target.keys and not tvm.device(target.kind.name, 0).exist:
        raise RuntimeError(
            f"no {target.kind.name} device here; compile and explain need none, measuring does"
        )
    if target.kind.name == "llvm" and (other := other_machine(target)):
        raise RuntimeError(
            f"the model would not run here: it is for {other}, and this machine is {platform.machine()}"
        )
    if reason := why_not_here(needed_flags(target)):
        raise RuntimeError(f"the model would not run here: {reason}")


def _matched(names: Sequence[str], rounds: Sequence[Calls]) -> list[Spread | None]:
    """Return the times of the kernels that a report names, each by its position in the order.

    A run may have other kernels, as when only one branch of a condition runs. A kernel is then found by its name, if
    it is called as often as the report lists it.
    """
    by_round = [_in_order(names, round_) for round_ in rounds]
    return [
        _spread([t for t in times if t is not None]) if all(t is not None for t in times) else None
        for times in zip(*by_round)
    ]


def _in_order(names: Sequence[str], calls: Calls) -> list[float | None]:
    """Return the seconds of the named kernels in the order of the names, None for a kernel that is not found."""
    if len(calls) == len(names) and all(name in ("", own) for own, (name, _) in zip(names, calls)):
        return [seconds for _, seconds in calls]
    times: dict[str, list[float]] = {}
    for name, seconds in calls:
        times.setdefault(name, []).append(seconds)
    left = {
        name: iter(times.get(name, ())) for name in names if names.count(name) == len(times.get(name, ()))
    }
    return [next(left[name]) if name in left else None for name in names]


def _spread(seconds: Sequence[float]) -> Spread:
    times = Times(tuple(seconds))
    return Spread(statistics.median(seconds), *times.middle)


def _name(device: tvm.runtime.Device) -> str:
    is_cpu = device.dlpack_device_type() == tvm.cpu().dlpack_device_type()
    return "this CPU" if is_cpu else str(device.device_name)
