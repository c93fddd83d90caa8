# SPDX-License-Identifier: Apache-2.0
"""Questions of bench_grid.py to the processes of its contenders, and their answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Target = Literal["cuda", "llvm"]


@dataclass(frozen=True)
class Measured:
    """One workload's time on the GPU.

    ``seconds`` is the median over calls of the summed durations of kernels, copies and memsets on the GPU. ``least``
    and ``most`` are the range. ``kernels`` and ``copies`` (with memsets) count the launches of one call. If CUPTI saw
    nothing, ``seconds`` is wall time from launch to completion and ``kernels`` is None.
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
    """The answer to a job. ``problem`` is why a time is missing, or None. The step "measure" sets ``measured``."""

    problem: str | None = None
    measured: Measured | None = None
    seconds: float = 0.0
