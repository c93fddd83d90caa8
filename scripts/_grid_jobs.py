# SPDX-License-Identifier: Apache-2.0
"""What bench_grid.py asks the processes of its contenders, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Target = Literal["cuda", "llvm"]


@dataclass(frozen=True)
class Measured:
    """One workload's time on the GPU.

    ``seconds`` is the median over calls of the summed durations of what ran on the GPU, kernels, copies and memsets
    alike; ``least`` and ``most`` are the range. ``kernels`` and ``copies`` (memsets included) are what one call
    launched. Where CUPTI saw nothing, ``seconds`` is wall time from launch to completion and ``kernels`` is None.
    """

    seconds: float
    least: float
    most: float
    kernels: int | None
    copies: int = 0
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """One step of one contender: compile, run and compare a case, or time it."""

    step: Literal["prepare", "measure"]
    contender: str
    case: int
    scale: str
    target: Target


@dataclass(frozen=True)
class Answer:
    """``problem`` says in words why there is no time, or is None; ``measured`` comes of the step "measure"."""

    problem: str | None = None
    measured: Measured | None = None
    seconds: float = 0.0
