# SPDX-License-Identifier: Apache-2.0
"""Tune Relax modules with MetaSchedule: resume from its database, stop at a time limit, show progress."""

from __future__ import annotations

import json
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from _child_process import environment
from tvm import relax
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from comparison import tuning_time
from comparison.progress import Progress
from tvm_stitch.execution.count import is_compute_intensive
from tvm_stitch.relax.backend import backend_of
from tvm_stitch.relax.pipeline import stitch_passes
from tvm_stitch.relax.tuning import load_intrinsics

DEFAULTS = (
    "Otherwise MetaSchedule has its defaults: post-order-apply space, gradient task scheduler, 64 trials an iteration "
    "at most. Every fused function is a task, element-wise ones included."
)


@dataclass(frozen=True)
class Tasks:
    """Extracted tasks: fused functions, and the number of times that each occurs in the model."""

    tasks: Sequence[Any]

    def compute_intensive(self) -> Tasks:
        """Return the tasks with a contraction."""
        return Tasks([task for task in self.tasks if _holds_contraction(task)])

    def unscheduled(self) -> Tasks:
        """Return the tasks without a schedule. Stitch ops have one."""
        return Tasks([t for t in self.tasks if not _function(t).attrs.get("tirx.is_scheduled")])


def _function(task: Any) -> Any:
    (func,) = task.dispatched[0].functions.values()
    return func


def _holds_contraction(task: Any) -> bool:
    return is_compute_intensive(_function(task), str(task.task_name))


def fused(target: Any, stitched: bool) -> Callable[[tvm.IRModule], tvm.IRModule]:
    """Fuse a model's functions for tuning, as TVM's pipeline does or with stitching."""
    passes = list(backend_of(target).library_dispatch_passes(target))
    if stitched:
        from tvm_stitch.config import StitchConfig

        passes += stitch_passes(target, StitchConfig())
    else:
        passes += [
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FoldConstant(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ]

    def run(mod: tvm.IRModule) -> tvm.IRModule:
        with target:
            return tvm.transform.Sequential(passes)(mod)

    return run


def tuned_pipeline(target: Any, stitched: bool, database: Any) -> Callable[[tvm.IRModule], tvm.IRModule]:
    """Return the whole pipeline with the database's schedules. Other functions get TVM's default schedules."""
    prepare = fused(target, stitched)

    def run(mod: tvm.IRModule) -> tvm.IRModule:
        mod = prepare(mod)
        with target, database, tvm.transform.PassContext(opt_level=3):
            mod = relax.transform.MetaScheduleApplyDatabase()(mod)
            if "gpu" in target.keys:
                from tvm.s_tir import dlight as dl

                rules = dl.gpu
                mod = dl.ApplyDefaultSchedule(
                    rules.Matmul(),
                    rules.GEMV(),
                    rules.Reduction(),
                    rules.GeneralReduction(),
                    rules.Fallback(),
                )(mod)
            lower = backend_of(target)
            passes = [*lower.dataflow_lower_passes(target), *lower.finalize_passes(target)]
            return tvm.transform.Sequential(passes)(mod)

    return run


def extract(mod: tvm.IRModule, target: Any, stitched: bool) -> Tasks:
    """Extract the tuning tasks of a model after fusion."""
    return Tasks(ms.relax_integration.extract_tasks(fused(target, stitched)(mod), target)).unscheduled()


class Records:
    """A database in a folder, with its records of each task."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.database = ms.database.JSONDatabase(work_dir=str(folder))
        self.times = folder / "tuning_times.jsonl"

    def key(self, task: Any) -> str:
        """Return a task's index among the database's workloads. Records name a task by this index."""
        # The database may return a task of equal structure under another name.
        wanted = self.database.commit_workload(task.dispatched[0]).as_json()
        for place, line in enumerate((self.folder / "database_workload.json").read_text().splitlines()):
            if json.loads(line) == wanted:
                return str(place)
        raise RuntimeError(f"the database in {self.folder} did not take the task {task.task_name}")

    def trials(self) -> tuple[Counter[str], Counter[str]]:
        """Return the trials by task, and the trials that gave no time."""
        made: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        path = self.folder / "database_tuning_record.json"
        for line in path.read_text().splitlines() if path.exists() else []:
            workload, record = json.loads(line)
            made[str(workload)] += 1
            seconds = record[1]
            failed[str(workload)] += not seconds or min(seconds) >= 1e9
        return made, failed

    def of(self, tasks: Tasks) -> tuple[int, int]:
        """Return the number of trials of these tasks, and the number of failed ones."""
        made, failed = self.trials()
        keys = {self.key(task) for task in tasks.tasks}
        return sum(made[key] for key in keys), sum(failed[key] for key in keys)

    def seconds_of(self, tasks: Tasks) -> tuple[float, int]:
        """Return the wall time of tuning these tasks in all runs, and the number of trials with a known time."""
        return tuning_time.spent(self.times, {self.key(task) for task in tasks.tasks})


def _search_path() -> str:
    """Return a PYTHONPATH with the repository, for packages that are not installed."""
    return os.pathsep.join(
        filter(None, (str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")))
    )


class _TimeIsUp(Exception):
    """Ends the task scheduler between two rounds."""


@derived_object
class _Watch(ms.measure_callback.PyMeasureCallback):
    """Shows progress and notes the time after every round, and stops when the time is up."""

    def __init__(self, tasks: Tasks, records: Records, progress: Progress, deadline: float) -> None:
        super().__init__()
        self._times, self._keys = records.times, [records.key(task) for task in tasks.tasks]
        self._noted = time.monotonic()
        self._weights = [int(task.weight) for task in tasks.tasks]
        self._progress, self._deadline = progress, deadline
        self._best: dict[int, float] = {}
        self._done = 0

    def apply(
        self, task_scheduler: Any, task_id: int, candidates: Any, builder_results: Any, runner_results: Any
    ) -> None:
        for result in runner_results:
            self._done += 1
            if result.run_secs:
                seconds = sum(float(s) for s in result.run_secs) / len(result.run_secs)
                self._best[task_id] = min(seconds, self._best.get(task_id, seconds))
        complete = len(self._best) == len(self._weights)
        best = sum(self._weights[i] * s for i, s in self._best.items()) if complete else None
        self._progress.show(len(self._best), self._done, best)
        now = time.monotonic()
        tuning_time.note(self._times, now - self._noted, {self._keys[task_id]: len(runner_results)})
        self._noted = now
        if now > self._deadline:
            raise _TimeIsUp("the time for tuning is up")


def tune(
    found: Tasks,
    records: Records,
    trials: int,
    seed: int,
    limit: float = float("inf"),
    cost_model: str = "xgb",
    strategy: str = "evolutionary",
) -> None:
    """Tune until the database holds ``trials`` for these tasks, or ``limit`` seconds are over.

    Args:
        trials: in all, those that the database holds already included.
        cost_model, strategy: by MetaSchedule's own names.

    Raises:
        ValueError: when ``trials`` does not even give each task one.
    """
    if not found.tasks:
        return
    if trials < len(found.tasks):
        raise ValueError(f"{trials} trials are too few for {len(found.tasks)} tasks: each needs at least one")
    before, _ = records.trials()
    done = records.of(found)[0]
    left = trials - done
    if left <= 0 or limit <= 0:
        return
    order = sorted(range(len(found.tasks)), key=lambda i: before[records.key(found.tasks[i])])
    chosen = Tasks(
        [found.tasks[i] for i in sorted(order[:left])]
    )  # the least tuned tasks, if there is not one trial for each
    load_intrinsics()
    logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.ERROR)
    contexts, weights = ms.relax_integration.extracted_tasks_to_tune_contexts(
        list(chosen.tasks), work_dir=str(records.folder), strategy=strategy, seed=seed
    )
    random.seed(seed)
    np.random.seed(seed)
    start = time.monotonic()
    watch = _Watch(chosen, records, Progress(len(chosen.tasks), left, done, limit), start + limit)
    try:
        with environment({"PYTHONPATH": _search_path()}):  # builders import load_intrinsics
            ms.tune_tasks(
                tasks=contexts,
                task_weights=weights,
                work_dir=str(records.folder),
                max_trials_global=left,
                num_trials_per_iter=max(1, min(64, left // len(contexts))),
                # Builders import the intrinsics too, in their own workers, which would exceed the time limit.
                builder=ms.builder.LocalBuilder(
                    max_workers=contexts[0].num_threads, initializer=load_intrinsics
                ),
                database=records.database,
                cost_model=cost_model,
                measure_callbacks=[*ms.measure_callback.MeasureCallback.create("default"), watch],
            )
    except Exception as err:
        if "the time for tuning is up" not in str(err):
            raise
