# SPDX-License-Identifier: Apache-2.0
"""Check random graphs of any front end, and report on long runs of them."""

from __future__ import annotations

import argparse
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from tvm_stitch.config import StitchConfig

from ..reference.bounds import violations
from ..warned import warned
from .growth import LEVELS, GraphType, Level
from .isolated import Crash, run_isolated


@dataclass
class CheckResult(Generic[GraphType]):
    """The outcome of running one graph."""

    graph: GraphType
    problems: list[str] = field(default_factory=list)
    error: str | None = None
    traceback: str | None = None
    launches: int | None = None
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.error is None and not self.problems

    def __str__(self) -> str:
        return "\n  ".join([self.graph.description, *self.problems, *([self.error] if self.error else [])])


def describe_error(error: Exception) -> str:
    """Return one line on an error: TVM's messages surround it with native stacks, sources and warnings."""
    lines = [line.strip() for line in str(error).replace("\0", "").splitlines() if line.strip()]
    told = [line for line in lines if "error:" in line.lower()] or lines[-1:]
    return f"{type(error).__name__}: {told[0] if told else 'no message'}"


def _first_and_last(text: str) -> str:
    """Return a warning in one line: its beginning, and the last error that it mentions."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines[1:] if re.match(r"\w*Error: ", line)]
    return " ... ".join([*lines[:1], *said[-1:]])


def checked(
    graph: GraphType, half_arithmetic: bool, run: Callable[[list[np.ndarray]], Any]
) -> CheckResult[GraphType]:
    """Run on inputs of the graph's seed. ``run`` returns (outputs, launches or None, further problems).

    Errors within the package are problems too, even if only its warnings mention them.
    """
    result = CheckResult(graph)
    start = time.perf_counter()
    try:
        inputs = graph.inputs(np.random.default_rng([graph.seed, 1]))
        with warned(_first_and_last) as warnings:
            outputs, result.launches, result.problems = run([x.copy() for x in inputs])
        result.problems = [
            *warnings,
            *result.problems,
            *violations(outputs, graph.tolerance(inputs, half_arithmetic)),
        ]
    except Exception as error:  # a compiler's failure is a finding, and a long run continues
        result.error = describe_error(error)
        result.traceback = traceback.format_exc()
    result.seconds = time.perf_counter() - start
    return result


@dataclass(frozen=True)
class Job:
    """One graph of a long run, as sent to the process that checks it."""

    seed: int
    target: str
    max_elements: int
    level: Level
    stock: bool
    show: bool
    config: StitchConfig


JobType = TypeVar("JobType", bound=Job)
Outcome = tuple[str | None, str]
"""(the reason why a graph failed or None, the text to print)."""


def jobs_of(kind: type[JobType], args: argparse.Namespace, config: StitchConfig) -> list[JobType]:
    """Return the graphs of a long run, by the options of the command line (:func:`parser`)."""
    seeds = range(args.start, args.start + args.count)
    options = args.target, args.max_elements, args.level, args.stock, args.show, config
    return [kind(seed, *options) for seed in seeds]


def outcome(job: Job, result: CheckResult[Any], script: Callable[[], str]) -> Outcome:
    """Return the outcome of a graph. ``script`` returns its module as text."""
    if result.ok:
        return None, ""
    shown = f"FAIL {result}"
    if job.show:
        shown = "\n".join([shown, script(), result.traceback or ""])
    return result.error or "out of bounds", shown


def parser(prog: str, targets: Sequence[str], description: str | None) -> argparse.ArgumentParser:
    """Make the command line of a long run. The caller implements ``--stock`` and other differences."""
    argument_parser = argparse.ArgumentParser(prog=prog, description=description)
    argument_parser.add_argument("--count", type=int, default=300, help="graphs to check")
    argument_parser.add_argument("--start", type=int, default=0, help="first seed")
    argument_parser.add_argument("--target", choices=sorted(targets), default="llvm")
    argument_parser.add_argument(
        "--max-elements", type=int, default=40_000, help="elements of the largest value"
    )
    argument_parser.add_argument(
        "--level",
        choices=LEVELS,
        default="grid",
        help="axes to reduce: innermost ones, any, any and crossed",
    )
    argument_parser.add_argument(
        "--stock", action="store_true", help="TVM's default pipeline instead of stitching"
    )
    argument_parser.add_argument(
        "--show", action="store_true", help="print module and traceback of every failure"
    )
    argument_parser.add_argument(
        "--multiprocessors", type=int, default=0, help="of a GPU that kernels can use (0: all)"
    )
    argument_parser.add_argument("--jobs", type=int, default=1, help="processes")
    argument_parser.add_argument("--timeout", type=float, default=300, help="most seconds for one graph")
    return argument_parser


def long_run(
    work: Callable[[JobType], Outcome], jobs: Sequence[JobType], processes: int, timeout: float, target: str
) -> dict[int, str]:
    """Check every job in a child process, print failures and a summary, and return failed seeds with reasons.

    ``work`` is a function of a module. ``timeout`` is the most seconds of one graph.
    """
    failed: dict[int, str] = {}
    start = time.perf_counter()
    for done, result in enumerate(run_isolated(work, jobs, processes, timeout, untrusted), start=1):
        why: str | None
        if isinstance(result, Crash):
            why, shown = result.reason, f"FAIL seed {result.item.seed}: {result.reason}"
        else:
            why, shown = result
        if why is not None:
            failed[jobs[done - 1].seed] = why
            print(shown, flush=True)
        if done % 100 == 0:
            print(f"{done} graphs, {len(failed)} failed, {time.perf_counter() - start:.0f} s", flush=True)
    print(f"{len(jobs)} graphs on {target}: {len(jobs) - len(failed)} right, {len(failed)} failed")
    if failed:
        print("failed seeds:", " ".join(map(str, failed)))
        for kind, count in Counter(re.sub(r"\d+", "#", why) for why in failed.values()).most_common():
            print(f"{count} times: {kind[:300]}")
    return failed


def untrusted(result: Outcome | Crash[Any]) -> bool:
    """Return whether a GPU fault or writes out of bounds may make the process unusable for the next graph."""
    return isinstance(result, Crash) or result[0] is not None
