# SPDX-License-Identifier: Apache-2.0
"""Measures the contenders of one model: prepared one after the other or several at once, then run in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import relative_error
from .job import Job
from .process import REFERENCE, Failed, Process

PAUSE = 0.2
"""Seconds between two contenders' blocks: what spins after a call has gone to sleep by then."""
SLOW_ROUNDS = 2
"""Rounds of a contender of which one call takes longer than a block."""
WRONG = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Errors, relative to the greatest value, beyond which a contender's result is wrong and its time means nothing."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How long it may take.

    Args:
        seconds: of a block.
        rounds: blocks of each contender.
        limits: seconds to prepare in, by contender; others have that of "".
        at_once: contenders that are prepared at the same time; more than one, and their times to compile disturb each
            other.
    """

    seconds: float
    rounds: int
    limits: Mapping[str, float]
    at_once: int = 1

    def limit(self, contender: str) -> float:
        """Seconds in which a contender must be ready."""
        return self.limits.get(contender, self.limits[""])


def measure(job: Job, contenders: Sequence[str], effort: Effort, tell: Tell) -> dict[str, Any]:
    """Everything about a job's model as JSON-able data; a contender that fails has its reason in it."""
    begin = time.perf_counter()
    rows: dict[str, dict[str, Any]] = {}
    running: dict[str, Process] = {}
    pool = ThreadPoolExecutor(effort.at_once)
    try:
        reference = _ask_reference(job, effort, tell)
        for name in contenders:  # here, one by one: a process inherits this one's environment
            running[name] = Process(name, job)
        asked = [
            pool.submit(_prepare, job, name, effort, "failed" not in reference, running[name])
            for name in contenders
        ]
        for name, answer in zip(contenders, asked):
            rows[name] = answer.result()
            if "failed" in rows[name]:
                del running[name]
            tell(f"  {name}: {_how(rows[name])}")
        blocks = _rounds(rows, running, effort)
        for name, found in blocks.items():
            _note(rows[name], found)
        for name, process in running.items():
            try:
                rows[name] |= process.ask("finish", effort.limit(name))
            except Failed as error:
                rows[name]["unfinished"] = str(error)
    finally:
        for process in running.values():
            process.stop()
        pool.shutdown()
    return {
        "model": job.model,
        "size": job.size,
        "batch": job.batch,
        "dtype": job.dtype,
        "reference": reference,
        "contenders": rows,
        "took_s": time.perf_counter() - begin,
    }


def _ask_reference(job: Job, effort: Effort, tell: Tell) -> dict[str, Any]:
    """What errors are measured against; its process is gone before anybody is timed."""
    process = Process(REFERENCE, job)
    try:
        told = process.ask("prepare", effort.limit(REFERENCE))
        process.stop()
    except Failed as error:
        told = {"failed": str(error)}
    tell(f"  {REFERENCE}: {told.get('failed', told.get('what'))}")
    return told


def _prepare(job: Job, name: str, effort: Effort, compare: bool, process: Process) -> dict[str, Any]:
    """What is known of a contender once it is ready; its process is ended where it failed or is wrong."""
    try:
        row: dict[str, Any] = process.ask("prepare", effort.limit(name))
    except Failed as error:
        return {"failed": str(error)}
    if not compare:
        return row
    row["error"] = relative_error(_read(job, name), _read(job, REFERENCE))
    if not row["error"] <= WRONG[job.dtype]:
        row["failed"] = f"wrong: relative error {row['error']:.1e}"
        process.stop()
    return row


def _read(job: Job, name: str) -> list[np.ndarray]:
    with np.load(job.outputs(name)) as file:
        return [file[key] for key in file.files]


def _how(row: Mapping[str, Any]) -> str:
    if "failed" in row:
        return f"left out: {row['failed']}"
    return f"ready, {row['one_call_s'] * 1e3:.3g} ms a call, compiled in {row['compile_s']:.1f} s"


def _rounds(
    rows: Mapping[str, dict[str, Any]], running: dict[str, Process], effort: Effort
) -> dict[str, list[dict[str, Any]]]:
    """The blocks of every contender, in turns of alternating direction."""
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
