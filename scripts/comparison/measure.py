# SPDX-License-Identifier: Apache-2.0
"""Measure the variants of a workload in one process, in turns, so that a disturbance affects all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from comparison.results import Kernels, Record, Spread
from tvm_stitch.importers.onnx.compare import greatest_error


class Program(Protocol):
    """A compiled workload with its inputs on the device."""

    @property
    def kernels(self) -> Kernels:
        """Return the kernels that one call launches."""
        ...

    def outputs(self) -> list[np.ndarray]:
        """Return all outputs of one call."""
        ...

    def sample(self) -> float:
        """Return the seconds of one call, the mean over a block of calls."""
        ...

    def sample_memory(self) -> float:
        """Return the seconds of one call's memory-intensive kernels, each timed separately."""
        ...


@dataclass(frozen=True)
class Built:
    """A program, and the time to build it."""

    program: Program
    tuning_seconds: float = 0.0
    trials: int = 0
    compile_seconds: float | None = None  # if compiling was timed separately


@dataclass(frozen=True)
class Variant:
    """One way to build the workload: a short name for files, a title for tables, and the function that does it."""

    name: str
    title: str
    build: Callable[[], Built]


def interleaved(samplers: Mapping[str, Callable[[], float]], blocks: int) -> dict[str, Spread]:
    """Call all samplers in turn ``blocks`` times, and return the spread of each one's results.

    Turns alternate in direction, so that no sampler always follows the same other one.
    """
    if blocks < 1:
        raise ValueError(f"blocks must be at least 1, got {blocks}")
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    for turn in range(blocks):
        names = list(samplers) if turn % 2 == 0 else list(reversed(list(samplers)))
        for name in names:
            samples[name].append(samplers[name]())
    return {name: Spread.of(times) for name, times in samples.items()}


def run_variants(
    variants: Sequence[Variant],
    reference: Sequence[np.ndarray],
    blocks: int,
    tolerance: float,
    say: Callable[[str], None],
) -> list[Record]:
    """Build every variant, compare its outputs with the reference, and time those that are right.

    Args:
        reference: the outputs in float64.
        blocks: turns of each variant.
        tolerance: the largest absolute error of a variant that is timed.
        say: receives a line a step.

    A variant that fails has the reason in its record, and the others go on.
    """
    records = [Record(variant.name, variant.title) for variant in variants]
    programs: dict[str, Program] = {}
    for variant, record in zip(variants, records):
        start = time.perf_counter()
        try:
            built = variant.build()
            spent = time.perf_counter() - start
            record.compile_seconds = spent if built.compile_seconds is None else built.compile_seconds
            record.tuning_seconds, record.trials = built.tuning_seconds, built.trials
            record.kernels = built.program.kernels
            record.error = greatest_error(built.program.outputs(), reference)
        except Exception as err:  # whatever a compiler may raise: the others are still of interest
            record.problem = f"{type(err).__name__}: {_last_line(str(err))}"
        else:
            if record.error <= tolerance:
                programs[variant.name] = built.program
            else:
                record.problem = f"wrong: the largest error is {record.error:.3g}, {tolerance:g} is allowed"
        say(f"{variant.title}: {record.problem or 'ready'} ({time.perf_counter() - start:.1f} s)")
    say(f"timing {len(programs)} variants, {blocks} blocks each")
    whole = interleaved({name: program.sample for name, program in programs.items()}, blocks)
    memory = interleaved({name: program.sample_memory for name, program in programs.items()}, blocks)
    for record in records:
        record.seconds, record.memory_seconds = whole.get(record.name), memory.get(record.name)
    return records


def _last_line(text: str) -> str:
    """Return the last line that is not empty: TVM's messages begin with the stack."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"
