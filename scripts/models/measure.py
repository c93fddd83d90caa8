# SPDX-License-Identifier: Apache-2.0
"""Measures the contenders of models: prepared one after the other or several at once, then run in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import mean_error
from .job import Job
from .process import REFERENCE, Failed, Process

PAUSE = 0.2
"""Seconds between two contenders' blocks, in which threads that spin after a call go to sleep."""
SLOW_ROUNDS = 2
"""Rounds of a contender whose call takes longer than a block."""
WRONG = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Errors, relative to the greatest value, beyond which a contender's result is wrong and its time means nothing."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """Limits on the time of a measurement.

    Args:
        seconds: time of a block.
        rounds: blocks of each contender.
        limits: most seconds to prepare, by contender. Others have that of "".
        at_once: contenders prepared at the same time. More than one disturb each other's compile times.
    """

    seconds: float
    rounds: int
    limits: Mapping[str, float]
    at_once: int = 1

    def limit(self, contender: str) -> float:
        """Return the seconds in which a contender must be ready."""
        return self.limits.get(contender, self.limits[""])


def measure(job: Job, contenders: Sequence[str], effort: Effort, tell: Tell) -> dict[str, Any]:
    """Measure a job's model, and return JSON-able data. It includes the reasons of contenders that failed."""
    return next(measure_all([job], contenders, effort, tell))


def measure_all(
    jobs: Sequence[Job], contenders: Sequence[str], effort: Effort, tell: Tell
) -> Iterator[dict[str, Any]]:
    """Measure several jobs. All their contenders are prepared before any is timed."""
    running: list[_Running] = []
    try:
        with ThreadPoolExecutor(effort.at_once) as pool:
            # Processes start one by one, since each inherits this one's environment.
            for job in jobs:
                running.append(_Running(job, contenders))
            asked = [each.prepare(effort, pool) for each in running]
            for each, answers in zip(running, asked):
                each.wait(answers, tell)
        for each in running:
            yield each.timed(effort)
            each.stop()
    finally:
        for each in running:
            each.stop()


class _Running:
    """A job's contenders, each in its process."""

    def __init__(self, job: Job, contenders: Sequence[str]):
        self.job, self.contenders = job, contenders
        self.rows: dict[str, dict[str, Any]] = {}
        self.reference: dict[str, Any] = {}
        self.processes: dict[str, Process] = {}
        self.spent = 0.0
        try:
            for name in (REFERENCE, *contenders):
                self.processes[name] = Process(name, job)
        except BaseException:
            self.stop()
            raise

    def prepare(self, effort: Effort, pool: Executor) -> list[Future[dict[str, Any]]]:
        """Return future answers: the reference's, then those of the contenders in their order."""
        reference = pool.submit(self._ask_reference, effort)
        return [reference, *(pool.submit(self._prepare, name, effort, reference) for name in self.contenders)]

    def wait(self, answers: Sequence[Future[dict[str, Any]]], tell: Tell) -> None:
        """Wait for the answers, and drop contenders that failed."""
        begin = time.perf_counter()
        tell(f"{self.job.model}, {self.job.size}")
        self.reference = answers[0].result()
        tell(f"  {REFERENCE}: {self.reference.get('failed', self.reference.get('what'))}")
        for name, answer in zip(self.contenders, answers[1:]):
            self.rows[name] = answer.result()
            if "failed" in self.rows[name]:
                self.processes.pop(name).stop()
            tell(f"  {name}: {_how(self.rows[name])}")
        self.spent += time.perf_counter() - begin

    def timed(self, effort: Effort) -> dict[str, Any]:
        """Time the contenders in turns, and return all data of the job."""
        begin = time.perf_counter()
        for name, found in _rounds(self.rows, self.processes, effort).items():
            _note(self.rows[name], found)
        for name, process in self.processes.items():
            try:
                self.rows[name] |= process.ask("finish", effort.limit(name))
            except Failed as error:
                self.rows[name]["unfinished"] = str(error)
        return {
            "model": self.job.model,
            "size": self.job.size,
            "batch": self.job.batch,
            "dtype": self.job.dtype,
            "reference": self.reference,
            "contenders": self.rows,
            "took_s": self.spent + time.perf_counter() - begin,
        }

    def stop(self) -> None:
        """End all running processes."""
        for process in self.processes.values():
            process.stop()
        self.processes.clear()

    def _ask_reference(self, effort: Effort) -> dict[str, Any]:
        """Compute the reference for errors. Its process ends before any contender is timed."""
        process = self.processes.pop(REFERENCE)
        try:
            told: dict[str, Any] = process.ask("prepare", effort.limit(REFERENCE))
        except Failed as error:
            return {"failed": str(error)}
        process.stop()
        return told

    def _prepare(self, name: str, effort: Effort, reference: Future[dict[str, Any]]) -> dict[str, Any]:
        """Prepare a contender, and return its data."""
        try:
            row: dict[str, Any] = self.processes[name].ask("prepare", effort.limit(name))
        except Failed as error:
            return {"failed": str(error)}
        if "failed" in reference.result():
            return row
        row["error"] = mean_error(_read(self.job, name), _read(self.job, REFERENCE))
        if not row["error"] <= WRONG[self.job.dtype]:
            row["failed"] = f"wrong: relative error {row['error']:.1e}"
        return row


def _read(job: Job, name: str) -> list[list[np.ndarray]]:
    """Read a contender's outputs, by draw of the inputs."""
    found: list[list[np.ndarray]] = [[] for _ in range(job.draws)]
    with np.load(job.outputs(name)) as file:
        for key in file.files:
            found[int(key.split(".")[0])].append(file[key])
    return found


def _how(row: Mapping[str, Any]) -> str:
    if "failed" in row:
        return f"left out: {row['failed']}"
    return f"ready, {row['one_call_s'] * 1e3:.3g} ms a call, compiled in {row['compile_s']:.1f} s"


def _rounds(
    rows: Mapping[str, dict[str, Any]], running: dict[str, Process], effort: Effort
) -> dict[str, list[dict[str, Any]]]:
    """Run the blocks of every contender, in turns of alternating direction."""
    blocks: dict[str, list[dict[str, Any]]] = {name: [] for name in running}
    for turn in range(effort.rounds):
        names = list(running)
        for name in names if turn % 2 == 0 else reversed(names):
            one_call = rows[name]["one_call_s"]
            if one_call > effort.seconds and turn >= SLOW_ROUNDS:
                continue
            time.sleep(PAUSE)
            try:
                block = running[name].ask(
                    "block", 60 + 20 * (one_call + effort.seconds), seconds=effort.seconds
                )
            except Failed as error:
                rows[name]["failed"] = str(error)
                del running[name], blocks[name]
                continue
            blocks[name].append(block)
    return blocks


def _note(row: dict[str, Any], blocks: Sequence[Mapping[str, Any]]) -> None:
    """Put a contender's times into its row."""
    medians = [block["median"] for block in blocks]
    row["median_s"] = statistics.median(medians)
    row["best_s"] = min(block["best"] for block in blocks)
    row["least_s"], row["most_s"] = min(medians), max(medians)
    row["blocks"] = [dict(block) for block in blocks]
